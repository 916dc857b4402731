"""Triton's kernels for PixelCNNs against float64: on a GPU if there is one, else by Triton's interpreter."""

from __future__ import annotations

import copy
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from sinuflow.conditioners import pixelcnn
from sinuflow.conditioners.pixelcnn import PixelCNN
from sinuflow.errors import KernelWarning
from sinuflow.ops import pixelcnn_fused
from sinuflow.ops.backends.triton import pixelcnn as triton_pixelcnn
from sinuflow.ops.backends.triton.pixelcnn import TritonProgram, TritonShape
from sinuflow.ops.pixel_affine import scaled
from sinuflow.ops.pixelcnn import pixel_network
from sinuflow.ops.pixelcnn_fused import (
    added_maps,
    from_images,
    fused_inverse,
    fused_outputs,
    reference_outputs,
    reproducible,
    to_images,
)
from sinuflow.solvers import SolverOptions
from tests.ops.test_pixelcnn_fused import (
    belongs,
    check_masked_weights,
    detects_errors,
    error,
    inverted,
    perturbed_flow,
)
from tests.ops.test_triton import compiled_by

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []

NETWORKS: dict[str, dict[str, Any]] = {
    "grey": {"shape": (1, 4, 2), "channels": 5, "residual_blocks": 1},
    "colour": {"shape": (3, 2, 4), "channels": 20, "residual_blocks": 2, "context": 2},
    "many maps": {"shape": (3, 2, 2), "channels": 64, "residual_blocks": 1},
    "deep": {"shape": (1, 3, 3), "channels": 17, "residual_blocks": 3, "context": 1},
    "a row of four channels": {"shape": (4, 1, 5), "channels": 16, "residual_blocks": 1},
    "one column": {"shape": (2, 4, 1), "channels": 4, "residual_blocks": 1, "context": 1},
    "one pixel": {"shape": (2, 1, 1), "channels": 2, "residual_blocks": 1},
    "grey, with scales": {"shape": (1, 3, 2), "channels": 6, "residual_blocks": 2, "outputs": 2},
    "colour, with scales": {"shape": (3, 2, 3), "channels": 17, "residual_blocks": 1, "context": 2, "outputs": 2},
}
IMAGES = 3


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """The interpreter runs one after the other."""
    if DEVICE == "cpu":
        monkeypatch.setattr(triton_pixelcnn, "_SPLITS", 3)


def built(name: str) -> tuple[PixelCNN, PixelCNN, TritonProgram]:
    """A network, the same in float64, and its kernels."""
    network = PixelCNN(**NETWORKS[name])
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network.to(DEVICE), copy.deepcopy(network).double(), program_of(network)


def decided(*networks: PixelCNN) -> None:
    """Keep all units away from zero, where rounding would decide whether they are active."""
    for network in networks:
        for layer in network.layers[:-1]:
            layer.bias.data += 6 * (-1) ** torch.arange(len(layer.bias)).to(layer.bias)


def program_of(network: PixelCNN) -> TritonProgram:
    shape = TritonShape(network.network().shape())
    return TritonProgram(shape, [layer.mask for layer in network.layers], torch.device(DEVICE))


def draw(network: PixelCNN, images: int = IMAGES) -> tuple[torch.Tensor, torch.Tensor | None]:
    channels, height, width = network.shape
    context = torch.randn(network.context, images).to(DEVICE) if network.context else None
    return torch.randn(channels * height * width, images).to(DEVICE), context


def doubled(context: torch.Tensor | None) -> torch.Tensor | None:
    return None if context is None else context.double()


#: In the last case, more of them than a tile has.
CASES = [*((name, IMAGES) for name in NETWORKS), ("one column", 70), ("grey, with scales", 70)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("name", "images"), CASES)
def test_the_shift_and_its_gradients(name, images, reverse):
    network, exact, program = built(name)
    decided(network, exact)
    x, context = draw(network, images)
    leaves = [t.requires_grad_() for t in (x, context) if t is not None]
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    z = fused_outputs(program, network.network(), x, context, reverse)
    given = doubles[1] if context is not None else None
    truth = reference_outputs(doubles[0], given, exact.weights(), exact.shape, reverse)
    assert error(z, truth) < 2e-3
    grad = torch.randn_like(z)
    found = torch.autograd.grad(z, [*leaves, *network.parameters()], grad)
    expected = torch.autograd.grad(truth, [*doubles, *exact.parameters()], grad.double())
    for ours, theirs in zip(found, expected, strict=True):
        assert error(ours, theirs) < 5e-3
        assert (ours - theirs).norm() <= 1e-2 * (0.1 + theirs.norm())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_without_gradients_it_is_exact_and_saves_nothing(name, reverse):
    network, exact, program = built(name)
    x, context = draw(network)
    program.learn = None
    z = fused_outputs(program, network.network(), x, context, reverse)
    assert error(z, reference_outputs(x.double(), doubled(context), exact.weights(), exact.shape, reverse)) < 1e-6


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_inverse_is_the_inverse(name):
    network, exact, program = built(name)
    x, context = draw(network)
    outputs = reference_outputs(x.double(), doubled(context), exact.weights(), exact.shape, False)
    z = scaled(outputs, len(x)).z.float()
    found, again, _ = fused_inverse(program, z, context, network.weights())
    true = reference_outputs(found.double(), doubled(context), exact.weights(), exact.shape, False)
    assert error(scaled(true, len(x)).z, z.double()) < 1e-6
    assert error(again, outputs) < 2e-6
    assert error(found, x.double()) < 1e-5


def test_images_beside_do_not_matter():
    """Also if they are more than a tile has."""
    network, _, program = built("one column")
    x, context = draw(network, 70)
    last = context[:, -1:]
    alone = x[:, -1:].clone().requires_grad_()
    together = x.clone().requires_grad_()
    with torch.no_grad():
        z = fused_outputs(program, network.network(), x, context, False)
        torch.testing.assert_close(z[:, -1:], fused_outputs(program, network.network(), alone, last, False))
        found = fused_inverse(program, z, context, network.weights())[0]
    torch.testing.assert_close(found, x, rtol=1e-5, atol=1e-5)
    both = ((together, context), (alone, last))
    of_last = [
        fused_outputs(program, network.network(), each, given, False)[:, -1].square().sum() for each, given in both
    ]
    wanted = ([t, *network.parameters()] for t in (together, alone))
    grads = [torch.autograd.grad(loss, leaves) for loss, leaves in zip(of_last, wanted, strict=True)]
    assert (grads[0][0][:, :-1] == 0).all()
    for ours, theirs in zip((grads[0][0][:, -1:], *grads[0][1:]), grads[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_gradients_may_be_tiny_or_huge():
    """Half precision would lose the one and not hold the other."""
    network, _, program = built("one column")
    x, context = draw(network)
    z = fused_outputs(program, network.network(), x.requires_grad_(), context, False)
    grad, leaves = torch.randn_like(z), [x, *network.parameters()]
    usual = torch.autograd.grad(z, leaves, grad, retain_graph=True)
    for largest in (1e-12, 1e12):
        scaled = torch.autograd.grad(z, leaves, largest * grad, retain_graph=True)
        for ours, theirs in zip(scaled, usual, strict=True):
            assert (ours / largest - theirs).norm() <= 1e-2 * theirs.norm()


def test_a_gradient_of_nothing_is_nothing():
    network, _, program = built("grey")
    x, _ = draw(network)
    z = fused_outputs(program, network.network(), x.requires_grad_(), None, False)
    for found in torch.autograd.grad(z, [x, *network.parameters()], torch.zeros_like(z)):
        assert (found == 0).all()


def test_masked_weights_have_no_effect_and_get_no_gradient():
    network, _, program = built("one column")
    x, context = draw(network)
    with torch.no_grad():
        exact = fused_outputs(program, network.network(), x, context, False)
    check_masked_weights(network, lambda: fused_outputs(program, network.network(), x, context, False))
    with torch.no_grad():
        assert fused_outputs(program, network.network(), x, context, False).equal(exact)


@pytest.mark.parametrize("layer", range(7))
@torch.no_grad()
def test_a_check_tells_the_largest_unit(layer):
    """Whichever layer it is in: here, of the first convolution, or of those of two bottlenecks."""
    network, exact, program = built("colour")
    for each in (network, exact):
        each.layers[layer].weight *= 100
        each.layers[layer + 1].weight *= 0.001
    x, context = draw(network)
    units: list[torch.Tensor] = []
    seen = to_images(x.double(), network.shape)
    shift = pixel_network(seen, context.double().mT, exact.weights(), units)
    packed = program.pack([*(la.weight for la in network.layers), *(la.bias for la in network.layers)], "invert")
    z, largest = program.check(packed, x, added_maps(program.shape, context, network.context_maps))
    assert error(z, x.double() + from_images(shift)) < 1e-6
    expected = torch.stack([u.amax((1, 2, 3)) for u in units]).amax(0)
    torch.testing.assert_close(largest.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["deep", "colour, with scales"])
def test_an_empty_batch_is_an_empty_answer(name):
    network, _, program = built(name)
    x, context = draw(network, 0)
    outputs = fused_outputs(program, network.network(), x.requires_grad_(), context, False)
    assert outputs.shape == (network.outputs * len(x), 0)
    found = torch.autograd.grad(outputs.sum(), [x, *network.parameters()])
    assert found[0].shape == x.shape
    assert all((g == 0).all() for g in found)
    with torch.no_grad():
        assert fused_inverse(program, x, context, network.weights())[0].shape == x.shape


def test_kernels_that_err_are_found_out():
    network, _, program = built("one pixel")
    detects_errors(program, network)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # by NumPy, for the interpreter
@pytest.mark.parametrize(
    ("name", "layer", "which"), [*(("grey", k, 0) for k in range(5)), ("grey, with scales", 7, -1)]
)
def test_what_is_no_number_stays_none(name, layer, which, monkeypatch):
    """Also in the scale alone."""
    network, _, program = built(name)
    assert layer < len(network.layers)
    weight = network.layers[layer].weight
    weight.data.view(-1)[int(network.layers[layer].mask.flatten().nonzero()[which])] = torch.nan
    x, _ = draw(network)
    assert fused_outputs(program, network.network(), x.requires_grad_(), None, False).isnan().any()
    monkeypatch.setattr(pixelcnn, "inverse_kernels", lambda *_: program)
    with torch.no_grad():
        assert fused_outputs(program, network.network(), x, None, False).isnan().any()
        assert not inverted(network, x, None, SolverOptions()).converged.any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # by NumPy, for the interpreter
def test_what_half_precision_cannot_hold_is_seen():
    """So that the step is not made."""
    network, _, program = built("grey")
    network.layers[0].bias.data[0] = 1e6
    x, _ = draw(network)
    z = fused_outputs(program, network.network(), x.requires_grad_(), None, False)
    assert not z.isfinite().all()
    with torch.no_grad():
        assert fused_outputs(program, network.network(), x, None, False).isfinite().all()


def test_gradients_are_the_same_again_however_they_come():
    network, _, program = built("one column")
    x, context = draw(network)
    grad = torch.randn_like(x)
    found = []
    for each, of_each in ((x, grad), (x.mT.contiguous().mT, grad.mT.contiguous().mT)):
        z = fused_outputs(program, network.network(), each.requires_grad_(), context, True)
        found.append(torch.autograd.grad(z, [each, *network.parameters()], of_each))
    for first, *others in zip(*found, strict=True):
        assert all(other.equal(first) for other in others)


def test_too_many_maps_are_left_to_others():
    assert not program_of(PixelCNN((1, 4, 4), channels=65, residual_blocks=1)).fits()
    assert not program_of(PixelCNN((1, 4, 4), channels=8, residual_blocks=0)).fits()
    assert not program_of(PixelCNN((6, 4, 4), channels=8, residual_blocks=1)).fits()
    assert program_of(PixelCNN((5, 4, 4), channels=64, residual_blocks=4)).fits()


@pytest.mark.parametrize("conditioning", ["shift", "affine"])
def test_a_flow_goes_through_the_kernels(conditioning, monkeypatch):
    """Its training, scores and certified samples."""
    flow = perturbed_flow((2, 2, 2), conditioning)
    exact, flow = copy.deepcopy(flow).double().to(DEVICE), flow.to(DEVICE)
    ours = [m for m in flow.modules() if isinstance(m, PixelCNN)]
    program, used = program_of(ours[0]), []

    def kernels_for(network, x):
        if not belongs(network, ours) or x.dtype != torch.float32:
            return None
        used.append(network)
        return program

    monkeypatch.setattr(pixelcnn_fused, "forward_kernels", kernels_for)
    monkeypatch.setattr(pixelcnn, "inverse_kernels", kernels_for)
    x, c = torch.randn(3, 8).to(DEVICE), torch.randn(3, 2).to(DEVICE)
    truth = exact(c.double()).log_prob(x.double())
    found = flow(c).log_prob(x)
    assert len(used) == 4
    assert error(found, truth) < 1e-2
    with torch.no_grad():
        assert error(flow(c).log_prob(x), truth) < 1e-5
    grads = torch.autograd.grad(found.sum(), list(flow.parameters()))
    expected = torch.autograd.grad(truth.sum(), list(exact.parameters()))
    flat = [torch.cat([g.flatten().double() for g in each]) for each in (grads, expected)]
    assert (flat[0] - flat[1]).norm() < 0.02 * flat[1].norm()
    z, _ = exact.bijection(x.double(), c.double())
    back = flow.invert(z.float(), c)
    assert back.converged.all()
    assert error(back.x, x.double()) < 1e-4


def test_only_kernels_that_run_and_are_right_are_used(monkeypatch):
    def tried(outputs=2):
        network = PixelCNN((1, 3, 2), context=2, channels=4, residual_blocks=1, outputs=outputs).network()
        with reproducible(torch.device(DEVICE)):
            return pixelcnn_fused._wide(network, network.shape(), torch.device(DEVICE))

    assert tried(1) is not None
    assert tried() is not None
    monkeypatch.setattr(pixelcnn_fused, "agrees", lambda *_: False)
    with pytest.warns(KernelWarning, match="disagree with the reference"):
        assert tried() is None
    failures = OutOfResources(300_000, 232_448, "shared memory"), RuntimeError("PassManager::run failed\nand more")
    for failure in failures:
        monkeypatch.setattr(pixelcnn_fused, "agrees", Mock(side_effect=failure))
        with pytest.warns(KernelWarning, match="a fallback runs instead: .*(shared memory|failed$)"):
            assert tried() is None
    monkeypatch.setattr(pixelcnn_fused, "agrees", Mock(side_effect=torch.OutOfMemoryError("none left")))
    with pytest.raises(torch.OutOfMemoryError):
        tried()


@pytest.mark.parametrize("name", ["one column", "grey, with scales"])
@torch.no_grad()
def test_an_inverse_that_errs_is_not_certified(name, monkeypatch):
    network, exact, program = built(name)
    x, context = draw(network)
    z = scaled(reference_outputs(x.double(), doubled(context), exact.weights(), exact.shape, False), len(x)).z.float()
    monkeypatch.setattr(pixelcnn, "inverse_kernels", lambda *_: program)
    found = inverted(network, z, context, SolverOptions())
    assert found.converged.all()
    inverse = program.inverse
    off = torch.zeros_like(z)
    off[5, 1] = 1e-3
    monkeypatch.setattr(program, "inverse", lambda *a: inverse(*a) + off)
    found = inverted(network, z, context, SolverOptions())
    assert found.converged.tolist() == [True, False, True]


@torch.no_grad()
def test_tiles_may_be_of_any_size(monkeypatch):
    """What fits into a tile on one GPU need not on another."""
    network, exact, program = built("one column")
    x, context = draw(network)
    truth = reference_outputs(x.double(), doubled(context), exact.weights(), exact.shape, False)
    monkeypatch.setattr(triton_pixelcnn, "_TILE", {"ROWS": 16, "num_warps": 4})
    monkeypatch.setattr(triton_pixelcnn, "_CHUNK", 16)
    z = fused_outputs(program, network.network(), x, context, False)
    assert error(z, truth) < 1e-6
    assert error(fused_inverse(program, z, context, network.weights())[0], x.double()) < 1e-5


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_every_kernel_compiles_for_a_gpu():
    """The interpreter takes much that the compiler does not."""
    assert len(compiled_by("compile_triton_pixelcnn.py")) == 30
