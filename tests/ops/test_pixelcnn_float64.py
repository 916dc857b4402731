"""The fused PixelCNN with float64 sums, in the emulator."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from sinuflow import SinusoidalFlow
from sinuflow.bijections.affine import ElementwiseAffine
from sinuflow.conditioners import pixelcnn
from sinuflow.conditioners.pixelcnn import PixelCNN
from sinuflow.errors import KernelWarning
from sinuflow.ops import pixelcnn_fused, scale_stack
from sinuflow.ops.backends.cuda.pixels.program import PixelProgram
from sinuflow.ops.backends.cuda.pixels.shape import PixelShape
from sinuflow.ops.pixel_affine import scaled
from sinuflow.ops.pixelcnn import pixel_network
from sinuflow.ops.pixelcnn_fused import (
    added_maps,
    agrees_float64,
    fused_inverse,
    fused_outputs,
    passes_float64,
    random_batch,
    reference_outputs,
    to_images,
)
from sinuflow.solvers import Inversion, SolverOptions
from tests.ops.emulator import EmulatorLauncher
from tests.ops.test_pixelcnn_fused import NETWORKS, belongs, draw, emulated, error, inverted

CPU = torch.device("cpu")


def doubled(name: str):
    """A network, the same in float64, its kernels, images, and the context in both dtypes."""
    network, exact, program = emulated(name)
    x, context = draw(network)
    x = torch.randn_like(x, dtype=torch.float64)  # with digits that float32 does not have
    return network, exact, program, x, context, None if context is None else context.double()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_only_hidden_units_are_rounded(name, reverse):
    network, exact, program, x, context, context64 = doubled(name)
    truth = reference_outputs(x, context64, exact.weights(), exact.shape, reverse)
    z = fused_outputs(program, network.network(), x, context, reverse)
    assert z.dtype == torch.float64
    assert error(z, truth) < 1e-7
    single = fused_outputs(program, network.network(), x.float(), context, reverse)
    assert error(z, truth) < 0.5 * error(single.double(), truth)


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_inverse_computes_the_same_hidden_units(name):
    """So its error is that of float64, although hidden units are rounded."""
    network, _, program, x, context, _ = doubled(name)
    outputs = fused_outputs(program, network.network(), x, context, False)
    back, again, _ = fused_inverse(program, scaled(outputs, len(x)).z, context, network.weights())
    assert back.dtype == again.dtype == torch.float64
    assert error(back, x) < 1e-14
    assert error(again, outputs) < 1e-14


def test_samples_that_overflow_float32_are_not_certified():
    """A float64 may be finite where its float32 is infinite."""
    rows = torch.zeros(3, dtype=torch.float64)
    x = torch.tensor([[1.0, 1e39, 3e38]], dtype=torch.float64)
    inversion = Inversion(x, rows, rows.int(), rows, torch.tensor([True, True, True]))
    assert inversion.to(torch.float32).converged.tolist() == [True, False, True]
    assert inversion.to(torch.float64).converged.all()
    failed = inversion._replace(converged=torch.tensor([False, True, True]))
    assert failed.to(torch.float32).converged.tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["colour", "many tiles to a warp", "one pixel"])
@torch.no_grad()
def test_the_check_returns_the_largest_hidden_unit(name):
    network, exact, program, x, context, context64 = doubled(name)
    units: list[torch.Tensor] = []
    seen = to_images(x, network.shape)
    pixel_network(seen, None if context64 is None else context64.mT, exact.weights(), units)
    parameters = [*(la.weight for la in network.layers), *(la.bias for la in network.layers)]
    added = None if context is None else added_maps(program.shape, context, network.context_maps)
    _, largest = program.check(program.pack(parameters, "invert float64"), x, added)
    torch.testing.assert_close(largest.double(), torch.stack([u.amax((1, 2, 3)) for u in units]).amax(0))


@pytest.mark.parametrize("layer", range(5))
@torch.no_grad()
def test_nan_weights_propagate(layer):
    network, _, program, x, _, _ = doubled("grey")
    weight = network.layers[layer].weight
    weight.data.view(-1)[int(network.layers[layer].mask.flatten().nonzero()[0])] = torch.nan
    z = fused_outputs(program, network.network(), x, None, False)
    assert z.isnan().any()
    assert fused_inverse(program, x, None, network.weights())[0].isnan().any()


@pytest.mark.parametrize(("off", "good"), [(1e-7, True), (1e-3, False)])
@torch.no_grad()
def test_certificates_assume_float32_hidden_units(off, good, monkeypatch):
    """Sums that are next to a tie may be rounded differently in the inverse; larger differences fail."""
    network, _, program, x, context, _ = doubled("colour")
    z = fused_outputs(program, network.network(), x, context, False)
    check = program.check
    monkeypatch.setattr(program, "check", lambda *a: (check(*a)[0] + off, check(*a)[1]))
    monkeypatch.setattr(pixelcnn, "inverse_kernels", lambda *_: program)
    result = inverted(network, z, context, SolverOptions())
    assert bool(result.converged.all()) == good
    torch.testing.assert_close(result.residual, torch.full_like(result.residual, off), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["one column", "scales"])
def test_the_self_test_detects_wrong_kernels(name):
    network, _, program = emulated(name)
    sample = random_batch(network.network(), CPU)
    assert agrees_float64(program, *sample)

    def one_wrong(tensor, which=0):
        tensor[which, which] += 1e-5
        return tensor

    wrong = [
        ("forward", lambda original: lambda *a: one_wrong(original(*a))),
        ("forward", lambda original: lambda *a: one_wrong(original(*a), -1)),  # of a scale, if there is one
        ("inverse", lambda original: lambda *a: one_wrong(original(*a))),
        ("check", lambda original: lambda *a: (one_wrong(original(*a)[0]), original(*a)[1])),
        ("check", lambda original: lambda *a: (one_wrong(original(*a)[0], -1), original(*a)[1])),
    ]
    for kernel, spoiled in wrong:
        original = getattr(program, kernel)
        setattr(program, kernel, spoiled(original))
        assert not agrees_float64(program, *sample), kernel
        with pytest.warns(KernelWarning, match="for float64 disagree"):
            assert not passes_float64(program, network.network())
        setattr(program, kernel, original)
    assert passes_float64(program, network.network())


def test_the_paper_s_images_fit():
    for size, outputs in itertools.product([(1, 28, 28), (3, 32, 32)], [1, 2]):
        shape = PixelShape(*size, 16, 2, outputs=outputs)
        masks = [la.mask for la in PixelCNN(size, residual_blocks=2, outputs=outputs).layers]
        program = PixelProgram(shape, masks, CPU, EmulatorLauncher(shape))
        assert program.fits()
        assert program.inverts()
        assert program.fits_float64()
    network = PixelCNN((3, 34, 34))
    large = PixelShape(3, 34, 34, 16, 2)
    program = PixelProgram(large, [la.mask for la in network.layers], CPU, EmulatorLauncher(large))
    assert not program.fits_float64()
    assert not passes_float64(program, network.network())


# ---------------------------------------------------------------- a flow


@pytest.fixture(params=["shift", "affine"])
def flow_by_kernels(request, monkeypatch):
    """A flow with kernels, the same by the reference, and the dtypes that the kernels were called with."""
    sizes = {"blocks": 3, "scales": 2, "waves": 2, "channels": 5, "residual_blocks": 1}
    flow = SinusoidalFlow.image((2, 5, 6), context=2, conditioning=request.param, **sizes)
    tame = 0.15 if request.param == "shift" else 0.05  # scales multiply from layer to layer
    for name, parameter in flow.named_parameters():
        parameter.data += (tame if "conditioner" in name else 0.3) * torch.randn_like(parameter)
    reference = copy.deepcopy(flow)
    ours = [m for m in flow.modules() if isinstance(m, PixelCNN)]
    shape = ours[0].network().shape()
    program = PixelProgram(shape, [la.mask for la in ours[0].layers], CPU, EmulatorLauncher(shape))
    seen: list[torch.dtype] = []

    def kernels_for(network, x):
        if not belongs(network, ours):
            return None
        seen.extend([x.dtype] if x.numel() else [])
        return program

    def kernels_of_inverse(network, z):
        seen.extend(["rounded before"] if z.dtype == torch.float64 and z.float().double().equal(z) else [])
        return kernels_for(network, z)

    monkeypatch.setattr(pixelcnn_fused, "forward_kernels", kernels_for)
    monkeypatch.setattr(pixelcnn, "inverse_kernels", kernels_of_inverse)
    return flow.eval(), reference.eval(), seen


@torch.no_grad()
def test_a_flow_is_as_accurate_as_its_rounded_inputs_and_outputs(flow_by_kernels):
    flow, reference, seen = flow_by_kernels
    x, c = 5 * torch.randn(4, 60), torch.randn(4, 2)
    exact = copy.deepcopy(reference).double()
    truth, true_ladj = exact.bijection(x.double(), c.double())
    z, ladj = flow.bijection(x, c)
    assert set(seen) == {torch.float64}
    assert z.dtype == ladj.dtype == torch.float32
    # Rounded once but for units; the reference is rounded in every layer.
    off, reference_off = ((result.double() - truth).norm() for result in (z, reference.bijection(x, c)[0]))
    assert off < 0.5 * reference_off
    assert error(ladj, true_ladj) < 1e-6
    seen.clear()
    density = flow(c).log_prob(x)
    assert set(seen) == {torch.float64}
    assert density.dtype == torch.float32
    assert error(density, exact(c.double()).log_prob(x.double())) < 3e-7

    seen.clear()
    result = flow.invert(truth.float(), c)
    assert set(seen) == {torch.float64}
    assert result.x.dtype == result.residual.dtype == result.ladj.dtype == torch.float32
    assert result.converged.all()
    best = exact.invert(truth.float().double(), c.double()).x
    off, reference_off = ((back.double() - best).norm() for back in (result.x, reference.invert(truth.float(), c).x))
    assert off < 0.5 * reference_off
    assert error(result.ladj, -true_ladj) < 1e-5


def test_frozen_flows_use_float64_in_any_mode(flow_by_kernels, monkeypatch):
    """The wave kernels may take float64 then, because there are no gradients."""
    flow, _, seen = flow_by_kernels
    asked = []
    monkeypatch.setattr(scale_stack, "wave_kernels", lambda *_, mixed: asked.append(mixed))
    c = torch.randn(2, 2)
    flow(c).log_prob(torch.randn(2, 60))
    assert not any(asked)
    assert torch.float64 not in seen
    asked.clear()
    seen.clear()
    flow.requires_grad_(False)(c).log_prob(torch.randn(2, 60))
    assert len(asked) == 3
    assert all(asked)
    assert set(seen) == {torch.float64}


def test_gradients_and_algorithm_1_use_the_dtype_of_the_flow(flow_by_kernels):
    flow, _, seen = flow_by_kernels
    x, c = torch.randn(2, 60), torch.randn(2, 2)
    flow(c).log_prob(x).sum().backward()
    z, _ = flow.bijection(x, c)
    flow.bijection.certified(z.mT, c.mT, SolverOptions())
    with torch.no_grad():
        result = flow.bijection.invert(z.mT.contiguous(), c.mT.contiguous(), SolverOptions("fixed_point"))
    assert result.x.dtype == torch.float32
    assert set(seen) == {torch.float32}


@torch.no_grad()
def test_float32_parameters_keep_float64_rows_accurate():
    affine = ElementwiseAffine(3)
    affine.log_scale += torch.randn(3)
    x = torch.randn(3, 50, dtype=torch.float64)
    z, ladj = affine.transform(x, None)
    back = affine.invert(z, None, SolverOptions())
    assert error(back.x, x) < 1e-15
    assert z.dtype == ladj.dtype == back.ladj.dtype == torch.float64
    torch.testing.assert_close(back.ladj, -ladj)
