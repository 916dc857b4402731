"""The fused PixelCNN against float64, with the CUDA kernels in an emulator on the CPU."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sinuflow import SinusoidalFlow
from sinuflow.conditioners import pixelcnn
from sinuflow.conditioners.pixelcnn import PixelCNN
from sinuflow.ops import pixelcnn_fused, select
from sinuflow.ops.backends.cuda.pixels.program import PixelProgram
from sinuflow.ops.backends.cuda.pixels.shape import PixelShape
from sinuflow.ops.pixel_affine import scaled
from sinuflow.ops.pixelcnn_fused import (
    Network,
    added_maps,
    agrees,
    forward_kernels,
    fused_inverse,
    fused_outputs,
    has_float64_kernels,
    inverse_kernels,
    passes,
    random_batch,
    reference_outputs,
    reproducible,
)
from sinuflow.solvers import SolverOptions
from sinuflow.transformers import Affine, Shift
from tests.ops.emulator import EmulatorLauncher


def inverted(network, z, context, options):
    """The certified inverse of the autoregressive map, with a shift or an affine transformer."""
    return network.invert_with((Shift, Affine)[network.outputs - 1](), z, context, options)


NETWORKS: dict[str, dict[str, Any]] = {
    "grey": {"shape": (1, 5, 4), "channels": 5, "residual_blocks": 1},
    "colour": {"shape": (3, 7, 7), "channels": 16, "residual_blocks": 2, "context": 2},
    "no blocks": {"shape": (1, 8, 8), "channels": 8, "residual_blocks": 0},
    "wide": {"shape": (2, 3, 40), "channels": 20, "residual_blocks": 1},
    "two tiles to a warp": {"shape": (1, 16, 16), "channels": 3, "residual_blocks": 1},
    "three tiles to a warp": {"shape": (1, 17, 17), "channels": 3, "residual_blocks": 1},
    "many tiles to a warp": {"shape": (1, 27, 28), "channels": 3, "residual_blocks": 1},
    "places that differ by constants": {"shape": (1, 32, 32), "channels": 3, "residual_blocks": 1},
    "a row of four channels": {"shape": (4, 1, 33), "channels": 17, "residual_blocks": 1, "outputs": 2},
    "one pixel": {"shape": (9, 1, 1), "channels": 9, "residual_blocks": 1, "outputs": 2},  # a head of two tiles
    "scales": {"shape": (1, 6, 7), "channels": 5, "residual_blocks": 1, "context": 1, "outputs": 2},
    "one column": {"shape": (1, 9, 1), "channels": 4, "residual_blocks": 1, "context": 1},
}
IMAGES = 2


@pytest.fixture(autouse=True)
def _fine_gradients(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def emulated(name: str) -> tuple[PixelCNN, PixelCNN, PixelProgram]:
    """A network, the same in float64, and its kernels."""
    network = PixelCNN(**NETWORKS[name])
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    shape = network.network().shape()
    masks = [layer.mask for layer in network.layers]
    program = PixelProgram(shape, masks, torch.device("cpu"), EmulatorLauncher(shape))
    return network, copy.deepcopy(network).double(), program


def draw(network: PixelCNN, images: int = IMAGES) -> tuple[torch.Tensor, torch.Tensor | None]:
    channels, height, width = network.shape
    context = torch.randn(network.context, images) if network.context else None
    return torch.randn(channels * height * width, images), context


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    assert ours.shape == exact.shape
    return float((ours.detach() - exact.detach()).abs().max() / (1 + exact.detach().abs().max()))


def belongs(network: Network, modules: list[PixelCNN]) -> bool:
    """Whether a network's parameters are those of one of the modules."""
    return any(network.weights[0] is module.first.weight for module in modules)


def detects_errors(program, network) -> None:
    """Whichever kernel errs, the self-test fails."""
    sample = random_batch(network.network(), program.device)
    assert agrees(program, *sample)

    def one_wrong(tensor, which=0):
        tensor[which, which] += 0.1
        return tensor

    wrong = [
        ("forward", lambda original: lambda *a: one_wrong(original(*a))),
        ("forward", lambda original: lambda *a: one_wrong(original(*a), -1)),  # of a scale, if there is one
        ("check", lambda original: lambda *a: (one_wrong(original(*a)[0], -1), original(*a)[1])),
        ("learn", lambda original: lambda *a: (1.1 * original(*a)[0], original(*a)[1])),
        ("backward", lambda original: lambda *a: original(*a)._replace(x=1.1 * original(*a).x)),
        ("inverse", lambda original: lambda *a: one_wrong(original(*a))),
        ("check", lambda original: lambda *a: (one_wrong(original(*a)[0]), original(*a)[1])),
        ("check", lambda original: lambda *a: (original(*a)[0], 1.1 * original(*a)[1])),
    ]
    for name, spoiled in wrong:
        setattr(program, name, spoiled(getattr(program, name)))
        assert not agrees(program, *sample), name
        delattr(program, name)
    assert agrees(program, *sample)


@pytest.mark.parametrize(("reverse", "tf32"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients(name, reverse, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    network, exact, program = emulated(name)
    assert program.shape.tf32 == tf32
    x, context = draw(network)
    leaves = [t.requires_grad_() for t in (x, context) if t is not None]
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    z = fused_outputs(program, network.network(), x, context, reverse)
    context64 = doubles[1] if context is not None else None
    truth = reference_outputs(doubles[0], context64, exact.weights(), exact.shape, reverse)
    assert error(z, truth) < (1e-3 if tf32 else 1e-6)
    grad = torch.randn_like(z)
    result = torch.autograd.grad(z, [*leaves, *network.parameters()], grad)
    expected = torch.autograd.grad(truth, [*doubles, *exact.parameters()], grad.double())
    if not tf32:
        assert max(error(ours, theirs) for ours, theirs in zip(result, expected, strict=True)) < 1e-5
        return
    # Of a unit next to zero, rounding decides whether it is active: so all are judged together.
    ours, theirs = (torch.cat([t.flatten().double() for t in tensors]) for tensors in (result, expected))
    assert 1e-5 < (ours - theirs).norm() / theirs.norm() < 0.03


@pytest.mark.parametrize("tf32", [False, True])
def test_without_gradients_outputs_are_float32_and_nothing_is_saved(tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    network, exact, program = emulated("grey")
    x, _ = draw(network)
    program.learn = None
    with torch.no_grad():
        z = fused_outputs(program, network.network(), x, None, False)
    assert error(z, reference_outputs(x.double(), None, exact.weights(), exact.shape, False)) < 1e-6


def check_masked_weights(network, outputs):
    z = outputs()
    z.square().sum().backward()
    for layer in network.layers:
        assert (layer.weight.grad[layer.mask == 0] == 0).all()
        layer.weight.data[layer.mask == 0] = torch.nan
    assert outputs().equal(z)


@pytest.mark.parametrize("name", ["colour", "one pixel"])
def test_masked_weights_have_no_effect_and_get_no_gradient(name):
    network, _, program = emulated(name)
    x, context = draw(network)
    check_masked_weights(network, lambda: fused_outputs(program, network.network(), x, context, False))


@pytest.mark.parametrize("name", ["grey", "scales"])
def test_second_derivatives_are_those_of_the_reference(name):
    network, exact, program = emulated(name)
    x, c = draw(network, 1)
    context64 = None if c is None else c.double()

    def penalty(shift, x):
        (slope,) = torch.autograd.grad(shift(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    result = penalty(lambda x: fused_outputs(program, network.network(), x, c, True), x.clone().requires_grad_())
    expected = penalty(
        lambda x: reference_outputs(x, context64, exact.weights(), exact.shape, True), x.double().requires_grad_()
    )
    assert error(result, expected) < 1e-5


@pytest.mark.parametrize("name", ["colour", "many tiles to a warp", "one pixel"])
def test_the_check_returns_the_largest_hidden_unit(name):
    network, exact, program = emulated(name)
    x, context = draw(network, 3)
    units: list[torch.Tensor] = []
    context64 = None if context is None else context.double()
    outputs = reference_outputs(x.double(), context64, exact.weights(), network.shape, False, units)
    packed = program.pack([*(la.weight for la in network.layers), *(la.bias for la in network.layers)], "invert")
    added = None if context is None else added_maps(program.shape, context, network.context_maps)
    ours, largest = program.check(packed, x, added)
    assert error(ours, outputs) < 1e-6
    expected = torch.stack([u.amax((1, 2, 3)) for u in units]).amax(0).detach()
    torch.testing.assert_close(largest.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["colour", "scales"])
def test_certificates_do_not_depend_on_tf32(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    network, exact, program = emulated(name)
    assert program.shape.tf32
    x, context = draw(network)
    z = scaled(reference_outputs(x.double(), context.double(), exact.weights(), exact.shape, False), len(x)).z.float()
    monkeypatch.setattr(pixelcnn, "inverse_kernels", lambda *_: program)
    with torch.no_grad():
        result = inverted(network, z, context, SolverOptions())
    assert result.converged.all()
    assert result.residual.max() < 1e-5


def test_tf32_is_rounded_and_not_truncated(monkeypatch):
    """Truncation would make all shifts smaller by 3e-4; rounding leaves noise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    shrinkage = []
    for seed in range(3):
        torch.manual_seed(seed)
        network, exact, program = emulated("many tiles to a warp")
        x, _ = draw(network, 4)
        z = fused_outputs(program, network.network(), x.requires_grad_(), None, False).detach().double()
        truth = reference_outputs(x.detach().double(), None, exact.weights(), exact.shape, False).detach()
        ours, theirs = (t - x.detach() for t in (z, truth))
        ours, theirs = ours - ours.mean(), theirs - theirs.mean()
        shrinkage.append(1 - float((ours * theirs).sum() / theirs.square().sum()))
    assert abs(sum(shrinkage) / 3) < 1.5e-4


def test_only_training_uses_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    network = PixelCNN((1, 4, 4), channels=4)
    assert network.network().shape().tf32
    assert not network.eval().network().shape().tf32
    with torch.no_grad():
        assert network.network().shape() == network.train().network().shape()  # the same kernels: they are exact there


@pytest.mark.parametrize(("name", "size"), [("grey", 20), ("scales", 84)])
def test_an_empty_batch(name, size):
    network, _, program = emulated(name)
    x, c = draw(network, 0)
    assert fused_outputs(program, network.network(), x.requires_grad_(), c, False).shape == (size, 0)


def test_three_outputs_are_not_supported():
    network = PixelCNN((1, 4, 4), channels=4, residual_blocks=1, outputs=3)
    shape, masks = network.network().shape(), [layer.mask for layer in network.layers]
    assert not PixelProgram(shape, masks, torch.device("cpu"), EmulatorLauncher(shape)).fits()


@pytest.mark.parametrize("name", ["one column", "scales"])
@pytest.mark.parametrize("tf32", [False, True])
def test_the_self_test_detects_wrong_kernels(tf32, name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    network, _, program = emulated(name)
    detects_errors(program, network)


@pytest.mark.parametrize("layer", range(5))
def test_nan_weights_propagate_in_tf32(layer, monkeypatch):
    """NaN on GPUs has all bits set, which rounding would overflow to zero."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    network, _, program = emulated("grey")
    assert len(network.layers) == 5
    nan = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    weight = network.layers[layer].weight
    weight.data.view(-1)[int(network.layers[layer].mask.flatten().nonzero()[0])] = nan
    x, _ = draw(network)
    assert fused_outputs(program, network.network(), x.requires_grad_(), None, False).isnan().any()
    with torch.no_grad():
        assert fused_outputs(program, network.network(), x, None, False).isnan().any()


def test_tf32_can_be_disabled_by_the_newer_setting(monkeypatch):
    class Cudnn:
        @property
        def allow_tf32(self):
            raise RuntimeError("mix of the legacy and new APIs")

        conv = type("conv", (), {"fp32_precision": "ieee"})

    network = PixelCNN((1, 4, 4), channels=4)
    monkeypatch.setattr(torch.backends, "cudnn", Cudnn())
    assert not network.network().shape().tf32


def test_images_that_do_not_fit_use_the_reference():
    network = PixelCNN((3, 64, 64))
    shape = PixelShape(3, 64, 64, 16, 2)
    masks = [layer.mask for layer in network.layers]
    assert not PixelProgram(shape, masks, torch.device("cpu"), EmulatorLauncher(shape)).fits()
    cifar = PixelShape(3, 32, 32, 16, 2)
    assert PixelProgram(cifar, masks, torch.device("cpu"), EmulatorLauncher(cifar)).fits()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_inverse_has_a_small_reconstruction_error(name):
    network, exact, program = emulated(name)
    x, context = draw(network)
    context64 = None if context is None else context.double()
    with torch.no_grad():
        z = scaled(reference_outputs(x.double(), context64, exact.weights(), exact.shape, False), len(x)).z.float()
        result = fused_inverse(program, z, context, network.weights())[0]
        again = scaled(reference_outputs(result.double(), context64, exact.weights(), exact.shape, False), len(x)).z
    assert error(again, z.double()) < 1e-6
    assert error(result, x.double()) < 1e-5


def perturbed_flow(shape, conditioning):
    """A conditional image flow with random parameters."""
    sizes = {"blocks": 2, "scales": 2, "waves": 2, "channels": 5, "residual_blocks": 1}
    flow = SinusoidalFlow.image(shape, context=2, conditioning=conditioning, **sizes)
    for name, parameter in flow.named_parameters():
        parameter.data += (0.1 if "conditioner" in name else 0.3) * torch.randn_like(parameter)
    return flow


@pytest.mark.parametrize("conditioning", ["shift", "affine"])
def test_a_flow_uses_the_kernels(conditioning, monkeypatch):
    """Scores, gradients and certified samples."""
    flow = perturbed_flow((2, 5, 6), conditioning)
    exact, original = copy.deepcopy(flow).double(), copy.deepcopy(flow)
    ours = [m for m in flow.modules() if isinstance(m, PixelCNN)]
    shape, masks = ours[0].network().shape(), [layer.mask for layer in ours[0].layers]
    program = PixelProgram(shape, masks, torch.device("cpu"), EmulatorLauncher(shape))
    used = []

    def kernels_for(network, x):
        if not belongs(network, ours):
            return None
        used.append(network)
        return program

    monkeypatch.setattr(pixelcnn_fused, "forward_kernels", kernels_for)
    monkeypatch.setattr(pixelcnn, "inverse_kernels", kernels_for)
    x, c = torch.randn(3, 60), torch.randn(3, 2)
    truth = exact(c.double()).log_prob(x.double())
    result = flow(c).log_prob(x)
    assert len(used) == 4
    assert error(result, truth) < 1e-5
    grads = torch.autograd.grad(result.sum(), list(flow.parameters()))
    for g, w in zip(grads, torch.autograd.grad(truth.sum(), list(exact.parameters())), strict=True):
        assert error(g, w) < 1e-4
    z, _ = exact.bijection(x.double(), c.double())
    back = flow.invert(z.float(), c)
    assert back.converged.all()
    assert error(back.x, x.double()) < 1e-4
    expected = original.invert(z.float(), c)
    for g, w in zip(
        torch.autograd.grad(back.x.sum(), list(flow.parameters()), allow_unused=True),
        torch.autograd.grad(expected.x.sum(), list(original.parameters()), allow_unused=True),
        strict=True,
    ):
        assert (g is None) == (w is None)
        assert g is None or error(g, w) < 1e-3


def test_the_self_test_is_reproducible_in_any_mode(monkeypatch):
    torch.manual_seed(3)
    expected = torch.randn(2)
    network = PixelCNN((1, 4, 4), context=2, channels=4, residual_blocks=1).network()
    shape = network.shape()
    try:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(3)
        monkeypatch.setattr(torch.cuda, "manual_seed_all", None)  # generators of GPUs are left alone
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), reproducible(torch.device("cpu")):
            assert passes(PixelProgram(shape, network.masks, torch.device("cpu"), EmulatorLauncher(shape)), network)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.randn(2).equal(expected)


def test_autocast_does_not_affect_the_kernels():
    network, _, program = emulated("one column")
    x, context = draw(network)
    with torch.no_grad():
        expected = fused_outputs(program, network.network(), x, context, False)
        with torch.autocast("cpu", torch.bfloat16):
            assert fused_outputs(program, network.network(), x, context, False).equal(expected)


def test_a_network_of_many_blocks_fits_only_for_training():
    network = PixelCNN((3, 32, 32), residual_blocks=3)
    shape = network.network().shape()
    program = PixelProgram(
        shape, [layer.mask for layer in network.layers], torch.device("cpu"), EmulatorLauncher(shape)
    )
    assert program.fits()
    assert not program.inverts()


@pytest.mark.parametrize("tf32", [False, True])
def test_networks_that_do_not_fit_use_triton(tf32, monkeypatch):
    """Triton's: always for the inverse; for the outputs if gradients may be in TF32, or are disabled."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    module, _, small = emulated("grey")
    network, x = module.network(), torch.empty(20, 1)
    others = object()
    monkeypatch.setattr(pixelcnn_fused, "_triton_kernels", lambda *_: others)
    monkeypatch.setattr(pixelcnn_fused, "_cuda_kernels", lambda *_: None)
    assert inverse_kernels(network, x) is others
    assert forward_kernels(network, x) is (others if tf32 else None)
    assert forward_kernels(module.eval().network(), x) is None
    with torch.no_grad():
        assert forward_kernels(network, x) is others
    monkeypatch.setattr(pixelcnn_fused, "_cuda_kernels", lambda *_: small)
    assert forward_kernels(network, x) is inverse_kernels(network, x) is small
    monkeypatch.setattr(small, "inverts", lambda: False)
    assert forward_kernels(network, x) is small
    assert inverse_kernels(network, x) is others


def test_triton_kernels_need_float32_and_tensor_cores(monkeypatch):
    network = PixelCNN((1, 5, 4), channels=5, residual_blocks=1).network()
    x = SimpleNamespace(is_cuda=True, dtype=torch.float32, device=torch.device("cpu"))
    monkeypatch.setattr(select, "triton_backend", lambda _: select.Backend(True, ""))
    monkeypatch.setattr(pixelcnn_fused, "_verified", lambda *_: "kernels")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert pixelcnn_fused._triton_kernels(network, x) == "kernels"
    x.dtype = torch.float64
    assert pixelcnn_fused._triton_kernels(network, x) is None
    x.dtype = torch.float32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert pixelcnn_fused._triton_kernels(network, x) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))  # not NVIDIA's
    monkeypatch.setattr(torch.version, "cuda", None)
    assert pixelcnn_fused._triton_kernels(network, x) is None


def test_kernels_are_verified_once(monkeypatch):
    """Those for float64 images where float64 is fast, after a self-test of their own."""
    network = PixelCNN((1, 4, 4), channels=4, residual_blocks=1).network()
    x = torch.empty(16, 1)
    monkeypatch.setattr(pixelcnn_fused, "use_cuda", lambda *_: True)
    monkeypatch.setattr(pixelcnn_fused, "CudaLauncher", lambda shape, _: EmulatorLauncher(shape))
    monkeypatch.setattr(pixelcnn_fused, "_VERIFIED", {})
    kernels = forward_kernels(network, x)
    assert isinstance(kernels, PixelProgram)
    assert kernels.passes_float64 is None
    monkeypatch.setattr(pixelcnn_fused, "passes", None)
    assert forward_kernels(network, x) is forward_kernels(network, x.double()) is kernels
    assert kernels.passes_float64
    assert has_float64_kernels(network, x)
    kernels.passes_float64 = False
    assert forward_kernels(network, x.double()) is None
