"""Every inverse is finite and certified, or raises, for any parameters, noise and backend.

``SINUFLOW_CASES`` is how many rows of noise are tried on the CPU's backends; a quarter of them by Algorithm 1, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from sinuflow import InversionError, SinusoidalFlow
from sinuflow.bijections.base import raise_unless_converged
from sinuflow.solvers import SolverOptions
from tests.hostile import backends
from tests.hostile.draws import ROWS, Case, draw_case
from tests.hostile.oracle import judge
from tests.ops.test_flow_program import FLOWS as EMULATED
from tests.ops.test_pixelcnn_fused import NETWORKS

FLOWS = -(-int(os.environ.get("SINUFLOW_CASES", 1080)) // ROWS)
#: Interpreted, emulated and compiled, a flow takes seconds.
FEW = max(1, FLOWS // 100)

CERTIFIED, FIXED_POINT = SolverOptions(), SolverOptions("fixed_point", max_iterations=12)
#: For kernels that are interpreted or emulated.
HURRIED = SolverOptions(max_iterations=12)
Backend = Callable[[SinusoidalFlow], AbstractContextManager[None]]


class Tally:
    """Counts of rows tried and certified, and descriptions of failures."""

    def __init__(self) -> None:
        self.tried = self.certified = 0
        self.wrong: list[str] = []

    def check(self, case: Case, backend: Backend, options: SolverOptions, layers: bool = True) -> None:
        """Check an inverse against its certificates."""
        rows, given, _ = case.flow.bijection.feature_major(case.z, case.context, "z")
        with backend(case.flow), torch.no_grad():
            certified, finite, agrees = judge(case.flow.bijection, rows, given, options, layers)
            for name, kept in (("not finite", finite), ("no inverse", agrees)):
                if (certified & ~kept).any():
                    self.wrong.append(f"{int((certified & ~kept).sum())} rows certified, {name}: {case.description}")
            if options is CERTIFIED:
                demand(case, certified)
        self.tried += len(certified)
        self.certified += int(certified.sum())

    def close(self) -> None:
        """Fail if anything was wrong; and if everything was refused, or nothing was hostile."""
        assert not self.wrong, "\n".join(self.wrong)
        assert self.tried // 10 < self.certified < self.tried


def part_of(case: Case) -> Case:
    """A third of the rows."""
    return case._replace(z=case.z[::3], context=None if case.context is None else case.context[::3])


def demand(case: Case, certified: torch.Tensor) -> None:
    """The public calls raise if one row fails, and return the rows that are certified."""
    bijection = case.flow.bijection
    if not certified.all():
        with pytest.raises(InversionError):
            bijection.inverse(case.z, case.context)
    if certified.any():
        z, context = (None if t is None else t[certified] for t in (case.z, case.context))
        try:
            x, ladj = bijection.inverse(z, context)
        except InversionError:  # in another batch, sums are rounded in another order
            return
        assert x.isfinite().all(), case.description
        assert ladj.isfinite().all(), case.description


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_on_a_cpu(dtype):
    tally = Tally()
    for seed in range(FLOWS):
        case = draw_case(seed, dtype)
        for options in (CERTIFIED, FIXED_POINT) if seed % 4 == 0 else (CERTIFIED,):
            for backend in (backends.reference, backends.native) if dtype == torch.float32 else (backends.reference,):
                tally.check(case, backend, options)
    tally.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, where numbers overflow
@pytest.mark.parametrize("conditioning", ["shift", "full"])
def test_by_triton(conditioning):
    pytest.importorskip("triton")
    tally = Tally()
    for seed in range(FEW):
        flow = SinusoidalFlow(2, conditioning=conditioning, blocks=1, scales=2, waves=2, hidden=(8,))
        tally.check(part_of(draw_case(seed, flow=flow)), backends.triton, HURRIED)
    assert not tally.wrong


@pytest.mark.parametrize("name", ["shift", "full", "context"])
def test_by_cuda(name):
    tally = Tally()
    for seed in range(FEW):
        flow = SinusoidalFlow(**EMULATED[name])  # the emulator's kernels are compiled for other tests, too
        tally.check(part_of(draw_case(seed, flow=flow)), backends.cuda, HURRIED, layers=False)
    assert not tally.wrong


@pytest.mark.parametrize("name", ["grey", "scales"])
def test_images_by_cuda(name):
    network = dict(NETWORKS[name])
    conditioning = "affine" if network.pop("outputs", 1) == 2 else "shift"
    tally = Tally()
    for seed in range(FEW):
        flow = SinusoidalFlow.image(conditioning=conditioning, blocks=1, scales=2, waves=2, **network)
        tally.check(part_of(draw_case(seed, flow=flow)), backends.cuda, HURRIED, layers=False)
    assert not tally.wrong


@pytest.mark.parametrize("conditioning", ["shift", "full", "image"])
def test_compiled_graphs_give_nan(conditioning):
    torch._dynamo.reset()
    if conditioning == "image":
        flow = SinusoidalFlow.image((1, 2, 2), blocks=1, scales=1, waves=2, channels=2, residual_blocks=0)
    else:
        flow = SinusoidalFlow(2, conditioning=conditioning, blocks=1, scales=2, waves=2, hidden=(8,))
    compiled = torch.compile(flow.bijection.inverse, fullgraph=True, backend="aot_eager")
    for seed in range(FEW):
        case = draw_case(seed, flow=flow)
        with torch.no_grad():
            x, ladj = compiled(case.z)
        finite = x.isfinite().all(-1) & ladj.isfinite()
        failed = x.isnan().all(-1) & ladj.isnan()
        assert (finite | failed).all(), case.description


def overflowing(dtype: torch.dtype = torch.float32) -> tuple[SinusoidalFlow, torch.Tensor]:
    """A flow whose solutions are divided by e^-2, and noise that is solved but overflows in the division."""
    flow = SinusoidalFlow(**EMULATED["full"])
    with torch.no_grad():
        for layer in flow.bijection:
            layer.conditioner.head.bias.view(layer.features, -1)[:, 1] = -50
    z = torch.full((flow.features, 3), torch.finfo(dtype).max / 3, dtype=dtype)
    z[:, 1] = 1.0
    return flow.to(dtype), z


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (backends.native, torch.float32),
        (backends.reference, torch.float32),
        (backends.reference, torch.float64),
        (backends.triton, torch.float32),
        (backends.cuda, torch.float32),
    ],
)
def test_the_division_by_a_scale_may_overflow(backend, dtype):
    """The layer where it happens fails, with an infinite residual."""
    if backend is backends.triton:
        pytest.importorskip("triton")
    flow, z = overflowing(dtype)
    with backend(flow), torch.no_grad():
        certificate = flow.bijection.certified(z, None, HURRIED)
        x, _ = certificate.x, certificate.ladj
        assert certificate.converged.all(0).tolist() == [False, True, False]
        assert certificate.residual[0].isinf().tolist() == [True, False, True]
        assert x[:, 1].isfinite().all()
        with pytest.raises(InversionError, match=r"'2.AutoregressiveWaves' could not be inverted for 2 of 3 samples"):
            raise_unless_converged(certificate, list(flow.bijection.layer_names()))


def test_a_compiled_graph_fills_overflows_with_nan():
    torch._dynamo.reset()
    flow = SinusoidalFlow(2, conditioning="full", blocks=1, scales=2, waves=2, hidden=(8,))
    with torch.no_grad():
        flow.bijection.bijections[0].conditioner.head.bias.view(2, -1)[:, 1] = -50
        compiled = torch.compile(flow.bijection.inverse, fullgraph=True, backend="aot_eager")
        x, ladj = compiled(torch.tensor([[1e38, 1.0], [1.0, 1.0]]))
    assert x.isnan().all(-1).tolist() == ladj.isnan().tolist() == [True, False]
