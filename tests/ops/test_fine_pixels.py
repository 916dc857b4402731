"""The CUDA kernels for PixelCNNs that add up in double precision, by the emulator."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from sinuflow import SinusoidalFlow
from sinuflow.bijections.affine import ElementwiseAffine
from sinuflow.conditioners import pixelcnn
from sinuflow.conditioners.pixelcnn import PixelCNN
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
from tests.ops.test_pixel_kernels import NETWORKS, belongs, draw, emulated, error, inverted

CPU = torch.device("cpu")


def doubled(name: str):
    """A network, the same in float64, its kernels, and images and contexts, these in both precisions."""
    network, exact, program = emulated(name)
    x, context = draw(network)
    x = torch.randn_like(x, dtype=torch.float64)  # with digits that single numbers do not have
    return network, exact, program, x, context, None if context is None else context.double()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_shift_is_rounded_in_its_units_alone(name, reverse):
    network, exact, program, x, context, given = doubled(name)
    truth = reference_outputs(x, given, exact.weights(), exact.shape, reverse)
    z = fused_outputs(program, network.network(), x, context, reverse)
    assert z.dtype == torch.float64
    assert error(z, truth) < 1e-7
    single = fused_outputs(program, network.network(), x.float(), context, reverse)
    assert error(z, truth) < 0.5 * error(single.double(), truth)


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_inverse_finds_the_same_units(name):
    """So that it is exact, though units are rounded."""
    network, _, program, x, context, _ = doubled(name)
    told = fused_outputs(program, network.network(), x, context, False)
    back, again, _ = fused_inverse(program, scaled(told, len(x)).z, context, network.weights())
    assert back.dtype == again.dtype == torch.float64
    assert error(back, x) < 1e-14
    assert error(again, told) < 1e-14


def test_what_is_too_large_for_single_numbers_is_not_certified():
    """A double can be finite where a float is not."""
    rows = torch.zeros(3, dtype=torch.float64)
    x = torch.tensor([[1.0, 1e39, 3e38]], dtype=torch.float64)
    fine = Inversion(x, rows, rows.int(), rows, torch.tensor([True, True, True]))
    assert fine.to(torch.float32).converged.tolist() == [True, False, True]
    assert fine.to(torch.float64).converged.all()
    failed = fine._replace(converged=torch.tensor([False, True, True]))
    assert failed.to(torch.float32).converged.tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["colour", "many tiles to a warp", "one pixel"])
@torch.no_grad()
def test_a_check_tells_the_largest_unit(name):
    network, exact, program, x, context, given = doubled(name)
    units: list[torch.Tensor] = []
    seen = to_images(x, network.shape)
    pixel_network(seen, None if given is None else given.mT, exact.weights(), units)
    parameters = [*(la.weight for la in network.layers), *(la.bias for la in network.layers)]
    added = None if context is None else added_maps(program.shape, context, network.context_maps)
    _, largest = program.check(program.pack(parameters, "invert float64"), x, added)
    torch.testing.assert_close(largest.double(), torch.stack([u.amax((1, 2, 3)) for u in units]).amax(0))


@pytest.mark.parametrize("layer", range(5))
@torch.no_grad()
def test_what_is_no_number_stays_none(layer):
    network, _, program, x, _, _ = doubled("grey")
    weight = network.layers[layer].weight
    weight.data.view(-1)[int(network.layers[layer].mask.flatten().nonzero()[0])] = torch.nan
    z = fused_outputs(program, network.network(), x, None, False)
    assert z.isnan().any()
    assert fused_inverse(program, x, None, network.weights())[0].isnan().any()


@pytest.mark.parametrize(("off", "good"), [(1e-7, True), (1e-3, False)])
@torch.no_grad()
def test_certificates_are_for_units_in_single_precision(off, good, monkeypatch):
    """A sum in the middle of two units may be rounded otherwise on the way back; nothing else may happen."""
    network, _, program, x, context, _ = doubled("colour")
    z = fused_outputs(program, network.network(), x, context, False)
    check = program.check
    monkeypatch.setattr(program, "check", lambda *a: (check(*a)[0] + off, check(*a)[1]))
    monkeypatch.setattr(pixelcnn, "inverse_kernels", lambda *_: program)
    found = inverted(network, z, context, SolverOptions())
    assert bool(found.converged.all()) == good
    torch.testing.assert_close(found.residual, torch.full_like(found.residual, off), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["one column", "scales"])
def test_kernels_that_err_are_found_out(name):
    network, _, program = emulated(name)
    sample = random_batch(network.network(), CPU)
    assert agrees_float64(program, *sample)

    def one_wrong(tensor, which=0):
        tensor[which, which] += 1e-5
        return tensor

    wrong = [
        ("forward", lambda plain: lambda *a: one_wrong(plain(*a))),
        ("forward", lambda plain: lambda *a: one_wrong(plain(*a), -1)),  # of a scale, if there is one
        ("inverse", lambda plain: lambda *a: one_wrong(plain(*a))),
        ("check", lambda plain: lambda *a: (one_wrong(plain(*a)[0]), plain(*a)[1])),
        ("check", lambda plain: lambda *a: (one_wrong(plain(*a)[0], -1), plain(*a)[1])),
    ]
    for kernel, spoiled in wrong:
        plain = getattr(program, kernel)
        setattr(program, kernel, spoiled(plain))
        assert not agrees_float64(program, *sample), kernel
        with pytest.warns(UserWarning, match="for float64 disagree"):
            assert not passes_float64(program, network.network())
        setattr(program, kernel, plain)
    assert passes_float64(program, network.network())


def test_there_is_room_for_the_images_of_the_paper():
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
    """A flow that goes through kernels, the same in plain PyTorch, and the precisions that kernels have seen."""
    sizes = {"blocks": 3, "scales": 2, "waves": 2, "channels": 5, "residual_blocks": 1}
    flow = SinusoidalFlow.image((2, 5, 6), context=2, conditioning=request.param, **sizes)
    tame = 0.15 if request.param == "shift" else 0.05  # scales multiply from layer to layer
    for name, parameter in flow.named_parameters():
        parameter.data += (tame if "conditioner" in name else 0.3) * torch.randn_like(parameter)
    plain = copy.deepcopy(flow)
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
    return flow.eval(), plain.eval(), seen


@torch.no_grad()
def test_a_flow_loses_only_what_rounding_noise_does(flow_by_kernels):
    flow, plain, seen = flow_by_kernels
    x, c = 5 * torch.randn(4, 60), torch.randn(4, 2)
    exact = copy.deepcopy(plain).double()
    truth, true_ladj = exact.bijection(x.double(), c.double())
    z, ladj = flow.bijection(x, c)
    assert set(seen) == {torch.float64}
    assert z.dtype == ladj.dtype == torch.float32
    # Rounded once but for units; the plain flow is rounded in every layer.
    off, plainly_off = ((found.double() - truth).norm() for found in (z, plain.bijection(x, c)[0]))
    assert off < 0.5 * plainly_off
    assert error(ladj, true_ladj) < 1e-6
    seen.clear()
    density = flow(c).log_prob(x)
    assert set(seen) == {torch.float64}
    assert density.dtype == torch.float32
    assert error(density, exact(c.double()).log_prob(x.double())) < 3e-7

    seen.clear()
    found = flow.invert(truth.float(), c)
    assert set(seen) == {torch.float64}
    assert found.x.dtype == found.residual.dtype == found.ladj.dtype == torch.float32
    assert found.converged.all()
    best = exact.invert(truth.float().double(), c.double()).x
    off, plainly_off = ((back.double() - best).norm() for back in (found.x, plain.invert(truth.float(), c).x))
    assert off < 0.5 * plainly_off
    assert error(found.ladj, -true_ladj) < 1e-5


def test_frozen_flows_are_as_fine_in_any_mode(flow_by_kernels, monkeypatch):
    """Nobody wants gradients of them: kernels for waves may see doubles then."""
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


def test_gradients_and_algorithm_1_are_in_the_precision_of_the_flow(flow_by_kernels):
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
def test_single_parameters_lose_nothing_of_double_rows():
    affine = ElementwiseAffine(3)
    affine.log_scale += torch.randn(3)
    x = torch.randn(3, 50, dtype=torch.float64)
    z, ladj = affine.transform(x, None)
    back = affine.invert(z, None, SolverOptions())
    assert error(back.x, x) < 1e-15
    assert z.dtype == ladj.dtype == back.ladj.dtype == torch.float64
    torch.testing.assert_close(back.ladj, -ladj)
