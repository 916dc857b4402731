"""The inverse of image layers: substitution, sweeps, certificates, and gradients through it."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from sinuflow import InversionError, SinuflowError
from sinuflow.bijections.image import ImageAffine, ImageShift
from sinuflow.solvers import Root, SolverOptions, parallel_sweeps
from tests.bijections.image_layers import (
    DOUBLE,
    build,
    every_kind,
    every_shape,
    every_single_kind,
    outputs,
    with_and_without_context,
)
from tests.builders import batch, jacobian


def plain_sweeps(shift, z, context=None):
    """As many parallel sweeps as there are features: exact, whatever the network."""
    network = shift.conditioner

    def evaluate(x, rows):
        shift, *free = network(x, None if context is None else context[rows].T).unbind(1)
        scale = torch.exp(2 * torch.tanh(free[0] / 2)) if free else torch.ones_like(x)
        return scale * (x + shift), scale.log().sum(0), torch.stack([shift, scale])

    target = (z.flip(-1) if shift.reverse else z).T.contiguous()

    def inverse(z, parameters, _):
        shift, scale = parameters
        return Root.exact(z / scale - shift, scale)

    options = SolverOptions("fixed_point", rtol=0, atol=0, max_iterations=10**4)
    result = parallel_sweeps(evaluate, inverse, target, options)
    return (result.x.flip(0) if shift.reverse else result.x).T, result.iterations


@every_single_kind
@every_shape
@with_and_without_context
@torch.no_grad()
def test_the_inverse_is_that_of_plain_sweeps(kind, shape, context):
    shift = build(kind, shape, context)
    z, c = batch(shift.features, context)
    want, _ = plain_sweeps(shift, z, c)
    torch.testing.assert_close(shift.inverse(z, c)[0], want, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_the_longest_chain_of_dependencies():
    """Each pixel is moved by its left neighbour and by the one it sees furthest to the right, one row up."""
    shift = ImageShift((1, 7, 9), channels=1, residual_blocks=1).double()
    first, head = shift.conditioner.first, shift.conditioner.head
    first.weight.zero_(), first.bias.zero_()
    for place in ((3, 2), (2, 6)):
        first.weight[:, 0, place[0], place[1]] = torch.tensor([1.0, -1.0])  # the two halves of a line
    shift.conditioner.blocks[0].grow.weight.zero_()
    shift.conditioner.blocks[0].grow.bias.zero_()
    head.weight[0, :, 0, 0] = torch.tensor([1.0, -1.0])
    x = torch.randint(-3, 4, (4, 63)).double()
    z, _ = shift(x)
    want, sweeps = plain_sweeps(shift, z)
    assert sweeps.max() >= 9 + 4 * 6  # width + 4 (height - 1)
    assert torch.equal(want, x)
    assert torch.equal(shift.inverse(z)[0], x)


@torch.no_grad()
def test_a_network_on_which_sweeps_overflow():
    """The true inverse is tame, but parallel sweeps go through numbers beyond single precision on the way."""
    shift = ImageShift((1, 1, 64), channels=1, residual_blocks=0)
    first, head = shift.conditioner.first, shift.conditioner.head
    first.weight.zero_(), first.bias.zero_()
    first.weight[:, 0, 3, 2] = torch.tensor([1.0, -1.0])
    head.weight[0, :, 0, 0] = torch.tensor([30.0, -30.0])
    x = torch.randint(-3, 4, (4, 64)).float()
    z, _ = shift(x)
    assert torch.equal(shift.inverse(z)[0], x)


@pytest.mark.parametrize("kind", [ImageShift, ImageAffine])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@torch.no_grad()
def test_sweeps_that_go_far_away_come_back(kind, dtype):
    """After as many sweeps as there are pixels, Algorithm 1 is exact, wherever it has been on the way."""
    layer = kind((1, 1, 24), channels=1, residual_blocks=0)
    first, head = layer.conditioner.first, layer.conditioner.head
    first.weight.zero_(), first.bias.zero_()
    first.weight[:, 0, 3, 2] = torch.tensor([1.0, -1.0])
    head.weight[0, :, 0, 0] = torch.tensor([10.0, -10.0])
    layer = layer.to(dtype)
    x = torch.randint(-3, 4, (4, 24)).to(dtype)
    rows = layer(x)[0].mT.contiguous()
    found = layer.invert(rows, None, SolverOptions("fixed_point"))
    assert found.converged.all()
    assert torch.equal(found.x, x.mT)


@every_single_kind
@torch.no_grad()
def test_a_residual_is_judged_by_the_largest_number(kind):
    """Here that is x + c(x), beside which neither x nor the network's units are large."""
    layer = build(kind, (1, 5, 5), dtype=torch.float32)
    layer.conditioner.head.bias[0] = 1e4 / 3
    x, _ = batch(25, dtype=torch.float32)
    z, _ = layer(x)
    found = layer.invert(z.mT.contiguous(), None, SolverOptions())
    assert found.converged.all()
    assert found.residual.max() > 32 * torch.finfo(torch.float32).eps * x.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_scales_may_be_as_large_as_in_trained_flows(dtype):
    affine = build("lower affine", (1, 6, 6), dtype=dtype)
    with torch.no_grad():
        affine.conditioner.head.weight[1:] *= 10
    x, _ = batch(36, rows=20, dtype=dtype)
    z, ladj = affine(x)
    share = torch.tanh(outputs(affine, x.mT)[36:] / 2).abs()
    assert (share > 0.7).double().mean() > 0.2  # of the largest log-scale
    back, ladj_back = affine.inverse(z)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(affine(back)[0], z, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ladj_back, -ladj, rtol=tolerance, atol=tolerance)


@every_kind
@with_and_without_context
def test_algorithm_1_agrees(kind, context):
    bijection = build(kind, (2, 5, 5), context)
    x, c = batch(bijection.features, context)
    rows, given, _ = bijection.feature_major(bijection(x, c)[0], c, "z")
    want, ladj, *_ = bijection.certified(rows, given, SolverOptions())
    exactly = SolverOptions("fixed_point", max_iterations=20000)
    certificate = bijection.certified(rows, given, exactly)
    found, found_ladj = certificate.x, certificate.ladj
    assert certificate.converged.all()
    torch.testing.assert_close(found, want, rtol=0, atol=1e-8)
    torch.testing.assert_close(found_ladj, ladj, rtol=0, atol=1e-7)
    cut = bijection.certified(rows, given, SolverOptions("fixed_point", max_iterations=2))
    assert not cut.converged.all()
    assert cut.iterations.max() <= 2


def test_a_failed_inverse_raises_and_says_where():
    block = build("ldu", (1, 4, 4))
    z, _ = batch(16)
    z[3, 5] = torch.nan
    with pytest.raises(InversionError, match=r"layer 'lower' .* 1 of 5 samples: they are NaN or infinite"):
        block.inverse(z)
    rows, _, _ = block.feature_major(z, None, "z")
    certificate = block.certified(rows, None, SolverOptions())
    assert certificate.converged.all(0).tolist() == [True, True, True, False, True]
    with torch.no_grad():
        block.bijections[0].conditioner.first.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(InversionError, match="layer 'upper'"):
        block.inverse(torch.zeros(2, 16, dtype=DOUBLE))


@pytest.mark.parametrize("kind", ["lower", "lower affine"])
def test_a_wrong_answer_is_caught(kind, monkeypatch):
    """The certificate is what the forward map makes of the answer, not what the solver believes."""
    shift = build(kind, (1, 5, 5), dtype=torch.float32)
    z, _ = batch(25, dtype=torch.float32)
    from sinuflow.conditioners import base

    honest = base.substitute

    def careless(*arguments):
        result = honest(*arguments)
        x = result.x.clone()
        x[12, 2] += 1e-3
        return result._replace(x=x)

    monkeypatch.setattr(base, "substitute", careless)
    with pytest.raises(InversionError, match=r"1 of 5 samples: after 1 iterations the largest residual is"):
        shift.inverse(z)


@every_single_kind
@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 4, 3)])
@with_and_without_context
def test_gradients_through_the_inverse_solve_with_the_jacobian(kind, shape, context):
    layer = build(kind, shape, context)
    z, c = batch(layer.features, context, rows=3)
    z.requires_grad_()
    extra = [] if c is None else [c.requires_grad_()]
    parameters = list(layer.parameters())
    x, ladj = layer.inverse(z, c)
    weights, of_ladj = torch.randn_like(x), torch.randn_like(ladj)
    found = torch.autograd.grad((weights * x).sum() + (of_ladj * ladj).sum(), [z, *extra, *parameters])
    # J^T v = g row by row, where g has what the log-determinant makes of x too; the rest is a pull-back of -v.
    x = x.detach().requires_grad_()
    g = weights
    if layer.conditioner.outputs > 1:  # that of a shift is 0, whatever x
        g = g - torch.autograd.grad((of_ladj * layer(x, c)[1]).sum(), x)[0]
    v = torch.stack(
        [
            torch.linalg.solve(
                jacobian(lambda t, i=i: layer(t, None if c is None else c[i].detach())[0], x[i].detach()).T, g[i]
            )
            for i in range(3)
        ]
    )
    again, forward_ladj = layer(x, c)
    want = torch.autograd.grad(-(v * again).sum() - (of_ladj * forward_ladj).sum(), [*extra, *parameters])
    for a, b in zip(found, [v, *want], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_gradients_are_those_of_the_parameters_that_were_used():
    """Parameters that are lent to a module for one call must be those of the backward pass as well."""
    shift = build("lower", (1, 4, 4))
    z, _ = batch(16)
    lent = {name: (1.5 * p).detach().requires_grad_() for name, p in shift.named_parameters()}

    class Inverse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = shift

        def forward(self, z):
            return self.shift.inverse(z)[0]

    x = functional_call(Inverse(), {f"shift.{name}": p for name, p in lent.items()}, (z,))
    found = torch.autograd.grad(x.square().sum(), list(lent.values()))
    with torch.no_grad():
        for name, parameter in shift.named_parameters():
            parameter.copy_(lent[name])
    want = torch.autograd.grad(shift.inverse(z)[0].square().sum(), list(shift.parameters()))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["upper", "upper affine"])
def test_second_derivatives_are_refused(kind):
    shift = build(kind, (1, 4, 4))
    z, _ = batch(16)
    x, _ = shift.inverse(z.requires_grad_())
    (slope,) = torch.autograd.grad(x.square().sum(), z, create_graph=True)
    with pytest.raises(SinuflowError, match="second derivatives through an inverse"):
        slope.sum().backward()
