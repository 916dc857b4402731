"""On a GPU: the same results as on the CPU, and tensors on the right device."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import sinuflow
from looks_trained import look_trained
from sinuflow.bijections.pixels import PixelMap
from sinuflow.conditioners import MADE
from sinuflow.conditioners.pixelcnn import PixelCNN
from sinuflow.data.image_rows import ImageRows
from sinuflow.ops.backends.cuda.pixels.program import PixelProgram
from sinuflow.ops.dropout import Dropout
from sinuflow.ops.flow_program import flow_program
from sinuflow.ops.pixel_affine import scaled
from sinuflow.ops.pixelcnn_fused import (
    forward_kernels,
    fused_inverse,
    fused_outputs,
    inverse_kernels,
    reference_outputs,
)
from tests.builders import CONDITIONINGS, batch, trained_flow
from tests.ops.test_dropout import dropping_like
from tests.ops.test_flow_program import FLOWS

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


# ---------------------------------------------------------------- the fused kernels


@pytest.mark.parametrize("name", FLOWS)
def test_the_flow_program_agrees_with_float64(name):
    exact = look_trained(sinuflow.SinusoidalFlow(**FLOWS[name])).double()
    flow = copy.deepcopy(exact).float().cuda()
    for rows in (1, 21, 1500, 5000):  # one block, and blocks of 8, 16 and 32 rows
        x_cpu = torch.randn(rows, flow.features)
        wide = torch.randn(rows, flow.context, dtype=torch.float64) if flow.context else None
        x, c = x_cpu.cuda(), None if wide is None else wide.float().cuda()
        assert flow_program(flow.bijection, x.mT) is not None
        log_p = flow(c).log_prob(x)
        expected = exact(wide).log_prob(x_cpu.double())
        torch.testing.assert_close(log_p.double().cpu(), expected, rtol=1e-4, atol=1e-3)
        grads = torch.autograd.grad(log_p.mean(), list(flow.parameters()))
        truth = torch.autograd.grad(expected.mean(), list(exact.parameters()))
        for ours, theirs in zip(grads, truth, strict=True):
            assert (ours.double().cpu() - theirs).abs().max() <= 1e-3 * (1 + theirs.abs().max())
        with torch.no_grad():
            torch.testing.assert_close(flow(c).log_prob(x), log_p.detach(), rtol=1e-6, atol=1e-5)
            z = exact.bijection(x_cpu.double(), wide)[0].float()
            back, _ = flow.bijection.inverse(z.cuda(), c)
            torch.testing.assert_close(back, x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["shift", "full"])
def test_kernels_drop_the_same_units(name, monkeypatch):
    exact = look_trained(sinuflow.SinusoidalFlow(**FLOWS[name], dropout=0.3)).double()
    flow = copy.deepcopy(exact).float().cuda().train()
    x = torch.randn(300, flow.features)
    op = flow_program(flow.bijection, x.cuda().mT)
    assert op is not None
    assert op.has_gradients()  # the self-test disables dropout
    dropout = Dropout(0.3, torch.tensor([3, -4], dtype=torch.int32))
    monkeypatch.setattr(op, "dropout", lambda: dropout._replace(seed=dropout.seed.cuda()))
    dropping_like([m for m in exact.modules() if isinstance(m, MADE)], dropout, op.program.shape.units)
    log_p, expected = flow().log_prob(x.cuda()), exact().log_prob(x.double())
    torch.testing.assert_close(log_p.double().cpu(), expected, rtol=1e-4, atol=1e-3)
    grads = torch.autograd.grad(log_p.mean(), list(flow.parameters()))
    for ours, theirs in zip(grads, torch.autograd.grad(expected.mean(), list(exact.parameters())), strict=True):
        assert (ours.double().cpu() - theirs).abs().max() <= 1e-3 * (1 + theirs.abs().max())


def captured_score(flow, x):
    """A CUDA graph that scores, and its output."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        flow(validate_args=False).log_prob(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        return graph, flow(validate_args=False).log_prob(x)


def test_every_replay_has_a_fresh_dropout_mask():
    flow = look_trained(sinuflow.SinusoidalFlow(4, blocks=2, hidden=(32, 32), dropout=0.5)).cuda().train()
    x = torch.randn(100, 4, device="cuda")
    graph, captured = captured_score(flow, x)
    found = []
    for _ in range(2):
        graph.replay()
        found.append(captured.clone())
    assert (found[0] != found[1]).any()


def test_a_captured_score_follows_its_weights():
    flow = look_trained(sinuflow.SinusoidalFlow(4, blocks=2, hidden=(32, 32))).cuda()
    x = torch.randn(100, 4, device="cuda")
    graph, captured = captured_score(flow, x)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(0.9)
        graph.replay()
        torch.testing.assert_close(captured, flow().log_prob(x))


@pytest.mark.parametrize("conditioning", ["shift", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captured_steps_equal_the_eager_engine(conditioning, dtype, monkeypatch):
    torch.manual_seed(0)
    start = sinuflow.SinusoidalFlow(3, conditioning=conditioning, blocks=2, hidden=(32, 32)).to(dtype)
    x = torch.randn(2000, 3, dtype=dtype)
    found = []
    for engine in ("plain", "device"):
        monkeypatch.setenv("SINUFLOW_ENGINE", engine)
        flow = copy.deepcopy(start)
        result = sinuflow.fit(flow, x, steps=100, batch_size=128, validate_every=100, device="cuda", progress=False)
        found.append(result.history[-1]["train_nll"])
    assert found[0] == pytest.approx(found[1], abs=1e-8 if dtype == torch.float64 else 1e-4)


def test_a_bad_batch_is_skipped_inside_a_graph():
    x = torch.randn(640, 2)
    x[5] = 1e30
    flow = sinuflow.SinusoidalFlow(2, conditioning="full", blocks=2, hidden=(16, 16))
    settings = {"steps": 100, "batch_size": 64, "validate_every": 50, "device": "cuda", "progress": False}
    result = sinuflow.fit(flow, x, torch.randn(100, 2), **settings)
    assert result.history[-1]["skipped"] >= 7
    assert np.isfinite(result.best_nll)


def test_compiled_kernels_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("SINUFLOW_CACHE", str(tmp_path))
    flow = look_trained(sinuflow.SinusoidalFlow(3, blocks=1, hidden=(24, 24))).cuda()
    flow().log_prob(torch.randn(5, 3, device="cuda"))
    assert {path.suffix for path in tmp_path.iterdir()} == {".cubin"}


# ---------------------------------------------------------------- images


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 7, 9)])
def test_pixelcnn_kernels_agree_with_float64(shape, tf32, outputs, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    network = PixelCNN(shape, context=2, outputs=outputs)
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    exact, network = copy.deepcopy(network).double(), network.cuda()
    x, c = torch.randn(shape[0] * shape[1] * shape[2], 5), torch.randn(2, 5)
    program = forward_kernels(network.network(), x.cuda())
    assert isinstance(program, PixelProgram)
    for reverse in (False, True):
        exactly = x.double().requires_grad_()
        truth = reference_outputs(exactly, c.double(), exact.weights(), shape, reverse)
        seen = x.cuda().requires_grad_()
        z = fused_outputs(program, network.network(), seen, c.cuda(), reverse)
        with torch.no_grad():
            scored = fused_outputs(program, network.network(), seen, c.cuda(), reverse)
        assert (scored.double().cpu() - truth).abs().max() <= 1e-5 * (1 + truth.abs().max())
        assert (z.double().cpu() - truth).abs().max() <= (1e-3 if tf32 else 1e-5) * (1 + truth.abs().max())
        grads = torch.autograd.grad((z + 1).square().sum(), [seen, *network.parameters()])
        expected = torch.autograd.grad((truth + 1).square().sum(), [exactly, *exact.parameters()])
        if tf32:  # of a unit next to zero, rounding decides whether it is active: so all are judged together
            ours, theirs = (torch.cat([t.flatten().double().cpu() for t in g]) for g in (grads, expected))
            assert (ours - theirs).norm() <= 0.03 * theirs.norm()
            continue
        for ours, theirs in zip(grads, expected, strict=True):
            assert (ours.double().cpu() - theirs).abs().max() <= 1e-4 * (1 + theirs.abs().max())
    with torch.no_grad():
        truth = reference_outputs(x.double(), c.double(), exact.weights(), shape, False)
        z = scaled(truth, len(x)).z.float().cuda()
        back, again, _ = fused_inverse(program, z, c.cuda(), network.weights())
    assert (back.cpu() - x).abs().max() <= 1e-4
    assert (again.cpu() - truth).abs().max() <= 1e-5 * (1 + truth.abs().max())


@pytest.mark.parametrize("outputs", [1, 2])
def test_wide_pixelcnn_kernels_agree_with_float64(outputs):
    """Networks that do not fit in shared memory use Triton: TF32 in training, float32 otherwise."""
    network = PixelCNN((3, 32, 32), channels=64, residual_blocks=4, outputs=outputs)
    for parameter in network.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    network = network.cuda()
    exact = copy.deepcopy(network).double()
    x = torch.randn(3072, 70).cuda()
    program = forward_kernels(network.network(), x)
    assert program is not None
    assert forward_kernels(network.eval().network(), x) is None  # gradients would have to be exact
    assert inverse_kernels(network.network(), x) is program
    for reverse in (False, True):
        exactly, seen = x.double().requires_grad_(), x.clone().requires_grad_()
        truth = reference_outputs(exactly, None, exact.weights(), exact.shape, reverse)
        parameters = fused_outputs(program, network.network(), seen, None, reverse)
        with torch.no_grad():
            scored = fused_outputs(program, network.network(), x, None, reverse)
        assert (scored - truth).abs().max() <= 1e-5 * (1 + truth.abs().max())
        assert (parameters - truth).abs().max() <= 5e-3 * (1 + truth.abs().max())
        grads = torch.autograd.grad((parameters + 1).square().sum(), [seen, *network.parameters()])
        expected = torch.autograd.grad((truth + 1).square().sum(), [exactly, *exact.parameters()])
        ours, theirs = (torch.cat([t.flatten().double() for t in g]) for g in (grads, expected))
        assert (ours - theirs).norm() <= 0.03 * theirs.norm()
    with torch.no_grad():
        truth = reference_outputs(x.double(), None, exact.weights(), exact.shape, False)
        back, again, _ = fused_inverse(program, scaled(truth, len(x)).z.float(), None, network.weights())
    assert (back - x).abs().max() <= 1e-4
    assert (again - truth).abs().max() <= 1e-5 * (1 + truth.abs().max())


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 7, 9)])
@torch.no_grad()
def test_float64_pixelcnn_kernels_and_their_inverse(shape, outputs):
    network = PixelCNN(shape, context=2, outputs=outputs)
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    exact, network = copy.deepcopy(network).double(), network.cuda()
    x, c = torch.randn(shape[0] * shape[1] * shape[2], 5, dtype=torch.float64), torch.randn(2, 5)
    program = forward_kernels(network.network(), x.cuda())
    if torch.cuda.get_device_capability() != (9, 0):  # others have no fast doubles, or little room
        pytest.skip("needs an H100 or H200")
    assert program is not None
    for reverse in (False, True):
        truth = reference_outputs(x, c.double(), exact.weights(), shape, reverse)
        parameters = fused_outputs(program, network.network(), x.cuda(), c.cuda(), reverse)
        assert (parameters.cpu() - truth).abs().max() <= 1e-6 * (1 + truth.abs().max())
    parameters = fused_outputs(program, network.network(), x.cuda(), c.cuda(), False)
    back, again, _ = fused_inverse(program, scaled(parameters, len(x)).z, c.cuda(), network.weights())
    # By chance, a sum may be so close to the middle of two units that it is rounded otherwise on the way back.
    assert (back.cpu() - x).abs().median() <= 1e-14
    assert (back.cpu() - x).abs().max() <= 1e-6
    assert (again - parameters).abs().max() <= 1e-6


@pytest.mark.parametrize("conditioning", ["shift", "affine"])
@torch.no_grad()
def test_image_flows_are_as_accurate_as_their_rounded_inputs_and_outputs(conditioning):
    flow = sinuflow.SinusoidalFlow.image((1, 28, 28), blocks=3, conditioning=conditioning).eval()
    for name, parameter in flow.named_parameters():
        parameter.data += (0.02 if "conditioner" in name else 0.3) * torch.randn_like(parameter)
    exact, flow = copy.deepcopy(flow).double(), flow.cuda()
    x = 5 * torch.randn(7, 784)
    truth, ladj = exact.bijection(x.double())
    z, found = flow.bijection(x.cuda())
    noise = (truth.float().double() - truth).norm()
    if torch.cuda.get_device_capability() == (9, 0):
        assert (z.cpu().double() - truth).norm() < 2 * noise
    assert (found.cpu().double() - ladj).abs().max() < 1e-3
    back = flow.invert(z)
    assert back.converged.all()
    assert (back.x.cpu() - x).abs().max() < 1e-4


WIDE = {"channels": 40, "residual_blocks": 3}  # more than a block's shared memory has room for


@pytest.mark.parametrize("network", [{}, WIDE, {"conditioning": "affine"}, WIDE | {"conditioning": "affine"}])
def test_an_image_flow_is_fitted_and_sampled_on_the_gpu(network):
    flow = sinuflow.SinusoidalFlow.image((1, 28, 28), blocks=2, **network)
    images = (255 * torch.rand(200, 1, 28, 28)).to(torch.uint8)
    rows = ImageRows(images, PixelMap())
    result = sinuflow.fit(flow, rows, rows, steps=60, batch_size=50, device="cuda", progress=False)
    assert result.best_nll < result.history[0]["val_nll"]
    found = flow.cuda().invert(torch.randn(20, 784, device="cuda"))
    assert found.converged.all()
