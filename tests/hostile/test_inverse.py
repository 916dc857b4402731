"""Every inverse is finite and certified, or it raises: whatever the parameters, the noise and the backend.

``SINUFLOW_CASES`` is how many rows of noise are tried on the CPU's backends, by both solvers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from sinuflow import InversionError, SinusoidalFlow
from sinuflow.solvers import SolverOptions
from tests.hostile import backends
from tests.hostile.draws import ROWS, Case, draw_case
from tests.hostile.oracle import judge
from tests.kernels.test_pixel_kernels import NETWORKS
from tests.kernels.test_whole_flow import FLOWS as EMULATED

FLOWS = -(-int(os.environ.get("SINUFLOW_CASES", 1800)) // ROWS)
#: Interpreted, emulated and compiled, a flow takes seconds.
FEW = max(1, FLOWS // 100)

CERTIFIED, FIXED_POINT = SolverOptions(), SolverOptions("fixed_point", max_iterations=12)
Backend = Callable[[SinusoidalFlow], AbstractContextManager[None]]


def check(case: Case, backend: Backend, options: SolverOptions = CERTIFIED, layers: bool = True) -> int:
    """Demand what the certificates promise; the number of rows that were certified."""
    rows, given, _ = case.flow.bijection.feature_major(case.z, case.context, "z")
    with backend(case.flow), torch.no_grad():
        verdict = judge(case.flow.bijection, rows, given, options, layers)
        wrong = verdict.certified & ~verdict.finite
        assert not wrong.any(), f"{int(wrong.sum())} rows certified and not finite: {case.description}"
        wrong = verdict.certified & ~verdict.agrees
        assert not wrong.any(), f"{int(wrong.sum())} rows certified and no inverse: {case.description}"
        if options is CERTIFIED:
            demand(case, verdict.certified)
    return int(verdict.certified.sum())


def demand(case: Case, certified: torch.Tensor) -> None:
    """What users call raises if one row failed, and returns what is certified."""
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
    certified = 0
    for seed in range(FLOWS):
        case = draw_case(seed, dtype)
        for options in (CERTIFIED, FIXED_POINT):
            certified += check(case, backends.reference, options)
            if dtype == torch.float32:
                certified += check(case, backends.native, options)
    tried = FLOWS * ROWS * (4 if dtype == torch.float32 else 2)
    assert tried // 10 < certified < tried  # neither is everything refused, nor nothing hostile


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, where numbers overflow
@pytest.mark.parametrize("conditioning", ["shift", "full"])
def test_by_triton(conditioning):
    pytest.importorskip("triton")
    for seed in range(FEW):
        flow = SinusoidalFlow(2, conditioning=conditioning, blocks=1, scales=2, waves=2, hidden=(8,))
        check(draw_case(seed, flow=flow), backends.triton)


@pytest.mark.parametrize("name", ["shift", "full", "context"])
def test_by_cuda(name):
    for seed in range(FEW):
        flow = SinusoidalFlow(**EMULATED[name])  # the emulator's kernels are compiled for other tests, too
        check(draw_case(seed, flow=flow), backends.cuda, layers=False)


@pytest.mark.parametrize("name", ["grey", "scales"])
def test_images_by_cuda(name):
    network = dict(NETWORKS[name])
    conditioning = "affine" if network.pop("outputs", 1) == 2 else "shift"
    for seed in range(FEW):
        flow = SinusoidalFlow.image(conditioning=conditioning, blocks=1, scales=2, waves=2, **network)
        check(draw_case(seed, flow=flow), backends.cuda, layers=False)


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
