"""Scores depend on the number of threads and on the batch only as docs/explanation/numerics.md says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import sinuflow
from looks_trained import look_trained
from tests.processes import unmeasured

#: Tolerance of log p, relative to 1 + |log p|: far above the differences in docs/explanation/numerics.md.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}


def build(conditioning: str, dtype: torch.dtype) -> sinuflow.SinusoidalFlow:
    torch.manual_seed(0)
    return look_trained(sinuflow.SinusoidalFlow(6, conditioning=conditioning, blocks=2)).to(dtype)


def scores_by_threads(flow: sinuflow.SinusoidalFlow, rows: int) -> list[torch.Tensor]:
    """The scores of the same rows by one to four threads."""
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(1)).to(next(flow.parameters()).dtype)
    found = []
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            with torch.no_grad():
                found.append(flow().log_prob(x))
                assert flow().log_prob(x).equal(found[-1])
    finally:
        torch.set_num_threads(1)
    return found


@pytest.mark.parametrize(
    ("conditioning", "dtype"), [("shift", torch.float32), ("full", torch.float32), ("shift", torch.float64)]
)
def test_same_threads_same_bits_and_other_threads_about_the_same(conditioning, dtype):
    flow = build(conditioning, dtype)
    one, *others = scores_by_threads(flow, 500)
    for other in others:
        torch.testing.assert_close(other, one, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    draws = [flow().sample((100,), generator=torch.Generator().manual_seed(2)) for _ in range(2)]
    assert draws[0].equal(draws[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_scores_about_the_same_alone(dtype):
    flow, x = build("shift", dtype), torch.randn(40, 6, dtype=dtype)
    with torch.no_grad():
        together, alone = flow().log_prob(x), torch.cat([flow().log_prob(row) for row in x.split(1)])
    torch.testing.assert_close(alone, together, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def main() -> None:
    """Run in a subprocess by the test below."""
    for conditioning in ("shift", "full"):
        one, *others = scores_by_threads(build(conditioning, torch.float32), 500)
        assert all(other.equal(one) for other in others)


@pytest.mark.skipif(
    not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="MKL's strict mode needs MKL, and AVX2",
)
def test_mkl_in_strict_mode_gives_the_same_bits_by_any_number_of_threads():
    program = "from tests.test_reproducibility import main; main()"
    environment = unmeasured(MKL_CBWR="AVX2,STRICT", PYTHONPATH=":".join(sys.path))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
