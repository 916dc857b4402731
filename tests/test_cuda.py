"""On a GPU: the same numbers as on the CPU, and everything where it belongs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import sinuflow
from tests.builders import CONDITIONINGS, batch, trained_flow

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("context", [0, 2])
def test_the_same_as_on_the_cpu(conditioning, context):
    flow = trained_flow(5, context, conditioning, blocks=3, residual=True)
    x, c = batch(5, context, rows=300)
    there = copy.deepcopy(flow).cuda()
    c_there = None if c is None else c.cuda()
    log_p = there(c_there).log_prob(x.cuda())
    assert log_p.is_cuda
    torch.testing.assert_close(log_p.cpu(), flow(c).log_prob(x), rtol=1e-10, atol=1e-10)
    log_p.sum().backward()
    flow(c).log_prob(x).sum().backward()
    for a, b in zip(there.parameters(), flow.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-8, atol=1e-8)
    z, _ = there.bijection(x.cuda(), c_there)
    for solver in ("certified", "fixed_point"):
        found = there.invert(z, c_there, solver=solver, max_iterations=5000)
        torch.testing.assert_close(found.x.cpu(), x, rtol=1e-6, atol=1e-6)
    drawn, log_q = there(c_there).rsample_and_log_prob((2,))
    assert drawn.is_cuda
    torch.testing.assert_close(there(c_there).log_prob(drawn), log_q, rtol=1e-6, atol=1e-6)
    there.zero_grad()
    (drawn.sum() + log_q.sum()).backward()
    assert all(p.grad.isfinite().all() for p in there.parameters())


def test_float32_on_the_gpu():
    flow = trained_flow(6, dtype=torch.float32, blocks=4, hidden=(64, 64)).cuda()
    with torch.no_grad():
        x = flow().sample((1000,))
        exact = copy.deepcopy(flow).double()().log_prob(x.double())
        assert ((flow().log_prob(x).double() - exact).abs() <= 1e-3 * (1 + exact.abs())).all()


@pytest.mark.parametrize("context", [[], ["kind"]])
def test_a_table_is_fitted_scored_and_sampled_on_the_gpu(context, tmp_path):
    pytest.importorskip("pyarrow")
    random = np.random.default_rng(0)
    kind = random.integers(0, 2, 400)
    columns = {"a": random.normal(size=400) + kind, "b": random.poisson(3, 400), "kind": kind}
    import pyarrow as pa

    table = pa.table(columns)
    model = sinuflow.fit_table(table, context=context, steps=30, device="cuda", progress=False)
    model.save(tmp_path / "m.safetensors")
    on_gpu, on_cpu = (sinuflow.load(tmp_path / "m.safetensors", device=device) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(on_gpu.log_prob(table), on_cpu.log_prob(table), atol=1e-3)
    given = {"kind": 1} if context else None
    assert on_gpu.sample(50, given, seed=0).num_rows == 50


def test_training_on_the_gpu_can_be_resumed(tmp_path):
    x = torch.randn(500, 2)
    flow = sinuflow.SinusoidalFlow(2, conditioning="full", blocks=2, hidden=(16,))
    first = sinuflow.fit(flow, x, x, steps=40, device="cuda", progress=False, checkpoint=tmp_path)
    again = sinuflow.fit(flow, x, x, steps=40, device="cuda", progress=False, checkpoint=tmp_path, resume=True)
    assert again.best_nll == first.best_nll
    assert next(flow.parameters()).device.type == "cpu"
