"""The CUDA kernels for op flows against float64: run by an emulator on the CPU."""

from __future__ import annotations

import copy
import math
import weakref
from typing import Any

import pytest
import torch

from looks_trained import look_trained
from sinuflow import SinusoidalFlow
from sinuflow.bijections import AutoregressiveWaves, Chain, ElementwiseAffine, LDUBlock
from sinuflow.bijections.base import CERTIFIED
from sinuflow.errors import KernelWarning
from sinuflow.ops.backends.cuda import program
from sinuflow.ops.backends.cuda.packing import Layout
from sinuflow.ops.backends.cuda.program import Program
from sinuflow.ops.flow_program import FlowProgram, agrees, gradients_agree, layout
from tests.ops.emulator import EmulatorLauncher

FLOWS = {
    "shift": {"features": 5, "blocks": 2, "hidden": (40, 40)},
    "one hidden layer, many features": {
        "features": 19, "blocks": 2, "hidden": (70,), "scales": 2, "waves": 3, "squash": 3.0,
    },
    "many scales": {"features": 2, "blocks": 1, "hidden": (16,), "scales": 19, "waves": 2},
    "full": {"features": 5, "conditioning": "full", "blocks": 3, "hidden": (40, 40), "residual": True},
    "context": {
        "features": 4, "conditioning": "full", "blocks": 2, "hidden": (24, 24, 24), "context": 3, "waves": 3,
        "scales": 3,
    },
    "many features": {"features": 18, "conditioning": "full", "blocks": 2, "hidden": (100, 100), "residual": True},
    "one feature": {"features": 1, "conditioning": "full", "blocks": 2, "hidden": (20, 20)},
    "wide": {
        "features": 3, "conditioning": "full", "blocks": 1, "hidden": (512, 512), "residual": True, "scales": 1,
        "waves": 2,
    },
    "far groups": {"features": 50, "blocks": 1, "hidden": (250,), "scales": 1, "waves": 1},
    "fewer units than features": {"features": 20, "blocks": 1, "hidden": (8, 8), "scales": 1, "waves": 2},
    "many units to a degree": {"features": 4, "blocks": 1, "hidden": (72, 72), "scales": 1, "waves": 2},
    "single degrees": {"features": 3, "blocks": 1, "hidden": (120, 120), "scales": 1, "waves": 2, "squash": 2.0},
    "many inputs": {"features": 9, "blocks": 1, "hidden": (460,), "scales": 1, "waves": 1},
    "residual": {"features": 9, "blocks": 1, "hidden": (60, 60), "residual": True, "scales": 1, "waves": 2},
    "two features": {"features": 2, "blocks": 1, "hidden": (16, 16), "scales": 1, "waves": 1},
}  # fmt: skip
#: Emulated with blocks of one size only.
SLOW = ("wide", "many units to a degree", "single degrees", "many inputs", "residual")
BATCH = 21


def emulated(
    name: str, processors: int, options: dict[str, Any] | None = None
) -> tuple[SinusoidalFlow, SinusoidalFlow, FlowProgram]:
    """A flow, the same in float64, and its kernels; few processors make blocks of more rows."""
    options = options or FLOWS[name]
    flow = look_trained(SinusoidalFlow(**options))
    result = layout(flow.bijection.spec(), flow.bijection.named_parameters())
    assert result is not None
    kernels = Program(result, torch.device("cpu"), EmulatorLauncher(result.shape, processors))
    exact = SinusoidalFlow(**options).double()
    exact.load_state_dict(flow.state_dict())
    op = FlowProgram(flow.bijection, kernels)
    op._gradients_verified = True  # the tests compare gradients themselves
    return flow, exact, op


def draw(flow: SinusoidalFlow, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A batch, feature-major."""
    return torch.randn(flow.features, batch), torch.randn(flow.context, batch) if flow.context else None


def double(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else t.double()


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    assert ours.shape == exact.shape
    ours, exact = ours.detach(), exact.detach()
    return float((ours - exact).abs().max() / (1 + exact.abs().max())) if exact.numel() else 0.0


def compare(flow: SinusoidalFlow, exact: SinusoidalFlow, op: FlowProgram) -> None:
    """The map, its log-determinant, and the gradients of both, with float64."""
    x, context = draw(flow)
    leaves = [t.requires_grad_() for t in (x, context) if t is not None]
    z, ladj = op.transform(x, context)
    grads = torch.randn_like(z), torch.randn_like(ladj)
    result = torch.autograd.grad((z, ladj), [*leaves, *flow.parameters()], grads)
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    truth = exact.bijection.layer_by_layer(doubles[0], doubles[1] if context is not None else None)
    expected = torch.autograd.grad(truth, [*doubles, *exact.parameters()], [g.double() for g in grads])
    assert error(z, truth[0]) < 1e-5
    assert error(ladj, truth[1]) < 1e-5
    for ours, theirs in zip(result, expected, strict=True):
        assert error(ours, theirs) < 1e-4


@pytest.mark.parametrize(
    ("name", "processors"), [(n, p) for n in FLOWS for p in (132, 2, 1) if n not in SLOW or p == 132]
)
def test_transform_and_gradients(name, processors):
    flow, exact, op = emulated(name, processors)
    compare(flow, exact, op)


def test_long_sums_have_float32_accuracy():
    """Tensor cores truncate sums, which over hundreds of units would be several times the error of float32."""
    flow, exact, op = emulated("wide", 132)
    x, _ = draw(flow, 100)
    with torch.no_grad():
        truth = exact.bijection.layer_by_layer(x.double(), None)[1]
        ours, original = op.transform(x, None)[1], flow.bijection.layer_by_layer(x, None)[1]
    assert (ours - truth).abs().mean() <= 2 * (original - truth).abs().mean()


@pytest.mark.parametrize("name", ["shift", "context"])
def test_gradients_of_many_rows_take_two_launches(name, monkeypatch):
    monkeypatch.setattr(program, "_MANY_ROWS", 1)
    options = {**FLOWS[name], "blocks": 3 if name == "shift" else 5}
    flow, exact, op = emulated(name, 132, options)
    assert len(op.program._backward_parts(BATCH)) == 2
    compare(flow, exact, op)


def test_parameters_may_be_strided_and_change_after_the_forward_pass():
    """Kernels read addresses: the forward pass must copy what the backward pass needs."""
    flow, exact, op = emulated("shift", 132)
    for parameter in flow.parameters():
        parameter.data = parameter.data.mT.contiguous().mT if parameter.ndim > 1 else parameter.data
    x, _ = draw(flow)
    result = op.transform(x, None)[1]
    expected = torch.autograd.grad(
        exact.bijection.layer_by_layer(x.double(), None)[1].sum(), list(exact.parameters()), allow_unused=True
    )
    for parameter in flow.parameters():
        parameter.data.add_(0.5)
    grads = torch.autograd.grad(result.sum(), list(flow.parameters()))
    for ours, theirs in zip(grads, expected, strict=True):
        assert error(ours, torch.zeros_like(ours).double() if theirs is None else theirs) < 1e-4


def test_activations_are_freed_after_the_backward_pass():
    flow, _, op = emulated("full", 132)
    x, _ = draw(flow)
    kept = []
    original = op.program.forward
    op.program.forward = lambda *a, **k: (
        kept.append(weakref.ref((result := original(*a, **k)).activations.saved_hidden)) or result
    )
    loss = op.transform(x, None)[1].sum()
    assert kept[0]() is not None
    loss.backward()
    assert kept[0]() is None


@pytest.mark.parametrize("name", ["shift", "full"])
def test_other_launch_configurations_fit_in_less_shared_memory(name):
    """Blocks with unsplit activations and fewer slots for prefetched tiles."""
    flow, exact, op = emulated(name, 132)
    x, _ = draw(flow)
    launcher, seen = op.program._launcher, set()
    original = launcher.launch

    def launch(name, *others):
        if name.startswith("flow"):
            block = others[-1]
            seen.add((block.rows, block.split, block.slots))
        original(name, *others)

    launcher.launch = launch
    for launcher.shared_bytes in range(50_000, 160_000, 10_000):
        if not op.program.fits():
            continue
        with torch.no_grad():
            z, _ = op.transform(x, None)
            back = op.inverse(z, None, limit=200)
            assert error(z, exact.bijection.layer_by_layer(x.double(), None)[0]) < 1e-5
            assert error(back.x, x.double()) < 1e-4
    assert {slots for _, _, slots in seen} == {2, 3, 4}
    assert {split for _, split, _ in seen} == ({False, True} if name == "full" else {False})


@pytest.mark.parametrize("batch", [BATCH, 75])
@pytest.mark.parametrize("name", ["shift", "full"])
def test_nll_gradient(name, batch):
    """What the training loop uses."""
    flow, exact, op = emulated(name, 132)
    x, _ = draw(flow, batch)
    out = torch.zeros(sum(p.numel() for p in flow.parameters()))
    log_density = op.nll_gradient(x, None, out)
    expected = exact().log_prob(x.mT.double())
    assert error(log_density, expected) < 1e-5
    truth = torch.autograd.grad(-expected.mean(), list(exact.parameters()))
    assert error(out, torch.cat([g.reshape(-1) for g in truth])) < 1e-5


@pytest.mark.parametrize(
    ("name", "processors"), [(n, p) for n in FLOWS for p in (132, 3, 1) if n not in SLOW or p == 132]
)
def test_the_inverse_is_certified(name, processors):
    flow, exact, op = emulated(name, processors)
    x, context = draw(flow)
    with torch.no_grad():
        z = exact.bijection.layer_by_layer(x.double(), double(context))[0].float()
        again, ladj, iterations, *_ = exact.bijection.certified(z.double(), double(context), CERTIFIED)
        result = op.inverse(z, context, limit=200)
    assert error(result.x, again) < 2e-5
    assert error(result.ladj, ladj) < 1e-4
    assert bool(result.converged.all())
    assert result.iterations.shape == iterations.shape
    assert int(result.iterations.max()) < 20
    assert float(result.residual.max()) < 1e-5


def test_rows_that_cannot_be_inverted_have_not_converged():
    flow, _, op = emulated("full", 132)
    z, _ = draw(flow)
    z[2, 3], z[0, 11] = math.nan, math.inf
    result = op.inverse(z, None, limit=200)
    assert result.converged.all(0).tolist() == [n not in (3, 11) for n in range(BATCH)]
    hurried = op.inverse(draw(flow)[0], None, limit=1)
    assert not bool(hurried.converged.all(0).any())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_context_affects_only_its_row(bad):
    flow, _, op = emulated("context", 132)
    x, context = draw(flow)
    context[1, 4] = bad
    with torch.no_grad():
        z, ladj = op.transform(x, context)
        back = op.inverse(x, context, limit=200)
    others = [n for n in range(BATCH) if n != 4]
    assert bool(ladj[4].isnan())
    assert bool(z[:, others].isfinite().all())
    assert back.converged.all(0).tolist() == [n != 4 for n in range(BATCH)]


def test_nan_weights_propagate():
    flow, _, op = emulated("full", 132)
    with torch.no_grad():
        flow.bijection.bijections[0].conditioner.layers[1].weight.fill_(math.nan)
        _, ladj = op.transform(draw(flow)[0], None)
        back = op.inverse(draw(flow)[0], None, limit=200)
    assert bool(ladj.isnan().all())
    assert not bool(back.converged.all(0).any())


@pytest.mark.parametrize(("mean", "log_scale"), [(0.0, -110.0), (0.0, -100.0), (0.0, 100.0), (3.0, -50.0)])
def test_an_affine_map_that_collapses_all_draws_is_not_certified(mean, log_scale):
    flow, _, op = emulated("shift", 132)
    z, _ = draw(flow)
    assert op.inverse(z, None, limit=200).converged.all()
    affine = flow.bijection.bijections[-1]
    affine.mean.data[2], affine.log_scale.data[2] = mean, log_scale
    result = op.inverse(z, None, limit=200)
    assert not result.converged[0].any()
    assert result.residual[0].isinf().all()


def test_flows_that_do_not_fit_run_layer_by_layer():
    flow = SinusoidalFlow(3, blocks=1, hidden=(4096, 4096))
    result = layout(flow.bijection.spec(), flow.bijection.named_parameters())
    assert not Program(result, torch.device("cpu"), EmulatorLauncher(result.shape)).fits()


def test_an_empty_batch():
    flow, _, op = emulated("full", 132)
    z, ladj = op.transform(torch.zeros(flow.features, 0), None)
    assert z.shape == (flow.features, 0)
    assert ladj.shape == (0,)


def test_second_derivatives_are_those_of_the_layers():
    flow, exact, op = emulated("shift", 132)
    x, _ = draw(flow, 3)
    x.requires_grad_()
    parameters = list(flow.parameters())

    def penalty(transform, x, parameters):
        z, ladj = transform(x, None)
        (slope,) = torch.autograd.grad(z.sum() + ladj.sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *parameters], allow_unused=True)

    result = penalty(op.transform, x, parameters)
    other = x.detach().double().requires_grad_()
    expected = penalty(exact.bijection.layer_by_layer, other, list(exact.parameters()))
    for ours, theirs in zip(result, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert error(ours, theirs) < 1e-2


def test_the_self_test_detects_wrong_kernels():
    _alive, _, op = emulated("full", 132)
    assert agrees(op)
    with torch.no_grad():
        honest = op.chain.layer_by_layer
        op.chain.layer_by_layer = lambda x, context: (1.1 * honest(x, context)[0], honest(x, context)[1])
    assert not agrees(op)


@pytest.mark.parametrize("name", ["shift", "context"])
def test_gradients_are_tested_at_first_use(name):
    flow, _, op = emulated(name, 132)
    assert gradients_agree(op)
    op._gradients_verified = None
    original = op.program.backward

    def wrong(*arguments, **options):
        result = original(*arguments, **options)
        return result._replace(parameters=1.1 * result.parameters)

    op.program.backward = wrong
    x, context = draw(flow)
    with pytest.warns(KernelWarning, match="gradients of the flow program disagree"):
        _, ladj = op.transform(x, context)
    right = torch.autograd.grad(flow.bijection.layer_by_layer(x, context)[1].sum(), list(flow.parameters())[:4])
    for ours, theirs in zip(torch.autograd.grad(ladj.sum(), list(flow.parameters())[:4]), right, strict=True):
        torch.testing.assert_close(ours, theirs)  # by layers


@pytest.mark.parametrize(
    "options",
    [
        {"activation": "tanh"},
        {"hidden": (32, 48)},
        {"context": 2},
        {"conditioning": "none"},
        {"scales": 33, "waves": 2},
    ],
)
def test_unsupported_flows_run_layer_by_layer(options):
    chain = SinusoidalFlow(**{"features": 3, "blocks": 1, "hidden": (32, 32), **options}).bijection
    assert layout(chain.spec(), chain.named_parameters()) is None


def layout_of(chain: Chain) -> Layout | None:
    return layout(chain.spec(), chain.named_parameters())


def test_a_chain_need_not_come_from_a_flow():
    """Arguments that a layer was not context64 have the defaults of its network."""
    chain = Chain([LDUBlock(3), LDUBlock(3), ElementwiseAffine(3)])
    assert (
        layout_of(chain).shape == layout_of(SinusoidalFlow(3, blocks=2, hidden=(256, 256), squash=0.0).bijection).shape
    )
    assert layout_of(copy.deepcopy(chain)) == layout_of(chain)
    assert layout_of(Chain([LDUBlock(3), LDUBlock(3, waves=3), ElementwiseAffine(3)])) is None
    assert layout_of(Chain([LDUBlock(3), ElementwiseAffine(3), LDUBlock(3)])) is None
    waves = [AutoregressiveWaves(3, hidden=(32, 32), reverse=reverse) for reverse in (False, True, True)]
    assert layout_of(Chain(waves[:2])) is not None
    assert layout_of(Chain(waves)) is None
    assert layout_of(Chain(waves[1:])) is None


def test_changed_chains_run_layer_by_layer():
    """The kernels read parameters in place: none may be computed, added or removed."""
    chain = SinusoidalFlow(3, blocks=2, hidden=(32, 32)).bijection
    assert layout_of(chain) is not None
    torch.nn.utils.parametrizations.weight_norm(chain.bijections[0].bijections[0].conditioner.layers[0])
    assert layout_of(chain) is None
    chain = SinusoidalFlow(3, blocks=2, hidden=(32, 32)).bijection
    chain.bijections.append(ElementwiseAffine(3))
    assert layout_of(chain) is None
