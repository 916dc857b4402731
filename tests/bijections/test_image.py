from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call

from sinuflow import ArgumentError, InversionError, SinuflowError
from sinuflow.bijections import Chain, SinusoidalScale
from sinuflow.bijections.image import ImageAffine, ImageLDUBlock, ImageShift, image_chain, image_shape
from sinuflow.bijections.whole_flow import anatomy
from sinuflow.conditioners.pixelcnn import MaskedConvolution, PixelCNN
from sinuflow.solvers import SolverOptions, parallel_sweeps
from sinuflow.solvers.wavefront import SKEW, fronts
from tests.builders import batch, jacobian, trained

DOUBLE = torch.float64
SHAPES = [(1, 6, 7), (3, 5, 4), (2, 9, 3), (1, 1, 8), (1, 8, 1), (4, 1, 1)]


def look_trained(bijection, seed=0, dtype=DOUBLE, head=0.3):
    """Drawn parameters: networks of unit gain that move a pixel by a few tenths, and waves as elsewhere."""
    trained(bijection, seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in bijection.modules():
            if isinstance(module, MaskedConvolution):
                fan_in = module.mask.sum((1, 2, 3), keepdim=True).clamp(min=1)
                weight = torch.randn(module.weight.shape, generator=generator, dtype=DOUBLE)
                module.weight.copy_(math.sqrt(2) * weight / fan_in.sqrt())
                module.bias.copy_(0.1 * torch.randn(module.bias.shape, generator=generator, dtype=DOUBLE))
        for module in bijection.modules():
            if isinstance(module, PixelCNN):
                module.head.weight.mul_(head)
                module.head.weight[module.shape[0] :].mul_(0.3)  # log-scales of a tenth or two
    return bijection


def build(kind, shape, context=0, dtype=DOUBLE, **options):
    makers = {
        "lower": lambda: ImageShift(shape, context, reverse=False, channels=5, **options),
        "upper": lambda: ImageShift(shape, context, reverse=True, channels=5, **options),
        "ldu": lambda: ImageLDUBlock(shape, context, scales=2, waves=2, channels=5, **options),
        "lower affine": lambda: ImageAffine(shape, context, reverse=False, channels=5, **options),
        "upper affine": lambda: ImageAffine(shape, context, reverse=True, channels=5, **options),
        "affine ldu": lambda: ImageLDUBlock(
            shape, context, scales=2, waves=2, channels=5, conditioning="affine", **options
        ),
    }
    return look_trained(makers[kind](), dtype=dtype)


def raster(shape) -> torch.Tensor:
    """The flattened features in raster order: rows, columns, channels."""
    return torch.arange(math.prod(shape)).view(shape).permute(1, 2, 0).flatten()


SINGLE = ["lower", "upper", "lower affine", "upper affine"]
every_kind = pytest.mark.parametrize("kind", [*SINGLE, "ldu", "affine ldu"])
every_single_kind = pytest.mark.parametrize("kind", SINGLE)
every_shape = pytest.mark.parametrize("shape", SHAPES)
with_and_without_context = pytest.mark.parametrize("context", [0, 2])


@every_kind
@every_shape
@with_and_without_context
def test_round_trip(kind, shape, context):
    bijection = build(kind, shape, context)
    x, c = batch(bijection.features, context)
    z, ladj = bijection(x, c)
    back, ladj_back = bijection.inverse(z, c)
    torch.testing.assert_close(bijection(back, c)[0], z, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(back, x, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(ladj_back, -ladj, rtol=1e-6, atol=1e-6)


@every_kind
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_round_trip_in_single_precision_at_any_depth(kind, blocks):
    bijection = build(kind, (3, 7, 6), 2, torch.float32, residual_blocks=blocks)
    x, c = batch(bijection.features, 2, dtype=torch.float32)
    z, _ = bijection(x, c)
    again, _ = bijection(bijection.inverse(z, c)[0], c)
    torch.testing.assert_close(again, z, rtol=1e-4, atol=1e-4)


@every_kind
@with_and_without_context
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 3, 4)])
def test_log_determinant_is_that_of_the_jacobian(kind, shape, context):
    bijection = build(kind, shape, context)
    x, c = batch(bijection.features, context, rows=1)
    given = None if c is None else c[0]
    want = torch.linalg.slogdet(jacobian(lambda t: bijection(t, given)[0], x[0]))[1]
    torch.testing.assert_close(bijection(x, c)[1][0], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 5, 5)])
def test_jacobians_are_triangular_in_raster_order(shape):
    order = raster(shape)
    eye = torch.eye(len(order), dtype=DOUBLE)
    x, _ = batch(len(order), rows=1)
    found = {}
    for kind in ("lower", "upper"):
        shift = build(kind, shape)
        found[kind] = jacobian(lambda t, s=shift: s(t)[0], x[0])[order][:, order]
        assert shift(x)[1].item() == 0
    assert torch.equal(found["lower"].triu(), eye)
    assert torch.equal(found["upper"].tril(), eye)
    for matrix in found.values():
        assert (matrix - eye).count_nonzero() > len(order)
    if shape[0] > 1:  # the channels of one pixel
        assert found["lower"][1, 0] != 0
        assert found["upper"][0, 1] != 0


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 5, 5)])
def test_scales_are_on_the_diagonal_and_see_what_is_before_alone(shape):
    order = raster(shape)
    x, _ = batch(len(order), rows=1)
    for kind in ("lower affine", "upper affine"):
        affine = build(kind, shape)
        matrix = jacobian(lambda t, s=affine: s(t)[0], x[0])[order][:, order]
        triangular = matrix.tril() if kind.startswith("lower") else matrix.triu()
        assert torch.equal(matrix, triangular)
        told = affine.told(x.mT, None).squeeze(1)
        scale = torch.exp(2 * torch.tanh(told[len(order) :] / 2))
        assert scale.unique().numel() > len(order) // 2
        torch.testing.assert_close(matrix.diagonal(), scale[order])
        # Both the shift and the scale have an effect of their own, also between the channels of a pixel.
        of_scale = jacobian(lambda t, s=affine: s.told(t.unsqueeze(1), None)[len(order) :, 0], x[0])[order][:, order]
        assert of_scale.count_nonzero() > len(order)
        seen = of_scale if kind.startswith("lower") else of_scale.mT
        assert torch.equal(seen, seen.tril(-1))
        if shape[0] > 1:
            assert seen[1, 0] != 0


def test_log_scales_are_bounded():
    affine = build("lower affine", (1, 3, 3))
    with torch.no_grad():
        affine.conditioner.head.bias[1] = 1e6
    x, _ = batch(9)
    z, ladj = affine(x)
    torch.testing.assert_close(ladj, torch.full_like(ladj, 18.0))
    torch.testing.assert_close(affine.inverse(z)[0], x)


def test_no_pixel_depends_on_its_own_front_or_a_later_one():
    shape = (1, 8, 9)
    network = build("lower", shape, residual_blocks=3).conditioner
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.abs_()  # no rectifier is shut
    x = torch.rand(1, *shape, dtype=DOUBLE)
    jac = jacobian(network, x).view(72, 72)
    time = (SKEW * torch.arange(8).unsqueeze(1) + torch.arange(9)).flatten()
    assert (time.unsqueeze(1) > time)[jac != 0].all()
    assert ((time.unsqueeze(1) == time + 1) & (jac != 0)).any()  # so no smaller skew would do
    pixels = torch.cat([front.pixels for front in fronts(8, 9, torch.device("cpu"))])
    assert torch.equal(pixels.sort()[0], torch.arange(72))
    assert (time[pixels].diff() >= 0).all()


def plain_sweeps(shift, z, context=None):
    """As many parallel sweeps as there are features: exact, whatever the network."""
    network = shift.conditioner

    def evaluate(x, rows):
        given = None if context is None else context[rows]
        shift, *free = network(x.T.reshape(-1, *network.shape), given).flatten(1).T.split(len(x))
        scale = torch.exp(2 * torch.tanh(free[0] / 2)) if free else torch.ones_like(x)
        return scale * (x + shift), torch.stack([shift, scale])

    target = (z.flip(-1) if shift.reverse else z).T.contiguous()
    root = parallel_sweeps(
        evaluate,
        lambda t, told: (t / told[1] - told[0], torch.ones(t.shape[1], dtype=bool)),
        target,
        rtol=0,
        atol=0,
        max_iterations=10**4,
    )
    return (root.x.flip(0) if shift.reverse else root.x).T, root.iterations.amax(0)


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
    (found,) = layer.invert(rows, None, SolverOptions("fixed_point"))
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
    (found,) = layer.invert(z.mT.contiguous(), None, SolverOptions())
    assert found.converged.all()
    assert found.residual.max() > 32 * torch.finfo(torch.float32).eps * x.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_scales_may_be_as_large_as_in_trained_flows(dtype):
    affine = build("lower affine", (1, 6, 6), dtype=dtype)
    with torch.no_grad():
        affine.conditioner.head.weight[1:] *= 10
    x, _ = batch(36, rows=20, dtype=dtype)
    z, ladj = affine(x)
    share = torch.tanh(affine.told(x.mT, None)[36:] / 2).abs()
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
    want, ladj, _ = bijection.certified(rows, given, SolverOptions())
    exactly = SolverOptions("fixed_point", max_iterations=20000)
    found, found_ladj, certificate = bijection.certified(rows, given, exactly)
    assert certificate.converged.all()
    torch.testing.assert_close(found, want, rtol=0, atol=1e-8)
    torch.testing.assert_close(found_ladj, ladj, rtol=0, atol=1e-7)
    _, _, cut = bijection.certified(rows, given, SolverOptions("fixed_point", max_iterations=2))
    assert not cut.converged.all()
    assert cut.iterations.max() <= 2


def test_a_failed_inverse_raises_and_says_where():
    block = build("ldu", (1, 4, 4))
    z, _ = batch(16)
    z[3, 5] = torch.nan
    with pytest.raises(InversionError, match=r"layer 'lower' .* 1 of 5 samples: they are NaN or infinite"):
        block.inverse(z)
    rows, _, _ = block.feature_major(z, None, "z")
    _, _, certificate = block.certified(rows, None, SolverOptions())
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
    from sinuflow.bijections import image_inverse

    honest = image_inverse.ordered_pixels

    def careless(network, target):
        x = honest(network, target).clone()
        x[0, 12, 2] += 1e-3
        return x

    monkeypatch.setattr(image_inverse, "ordered_pixels", careless)
    with pytest.raises(InversionError, match=r"1 of 5 samples: after 1 iterations they are off by up to"):
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
    if layer.outputs > 1:  # that of a shift is 0, whatever x
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


def test_any_batch_dimensions():
    block = build("ldu", (2, 3, 4), 2)
    x, c = batch(24, 2, rows=6)
    z, _ = block(x, c)
    shaped, _ = block(x.view(2, 3, 24), c.view(2, 3, 2))
    torch.testing.assert_close(shaped.reshape(6, 24), z)
    torch.testing.assert_close(block.inverse(shaped, c.view(2, 3, 2))[0], x.view(2, 3, 24), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(block.inverse(z[0], c[0])[0], x[0], rtol=1e-7, atol=1e-8)
    assert block.inverse(z[:0], c[:0])[0].shape == (0, 24)


def test_the_block_is_lower_after_scale_after_upper():
    block = build("ldu", (1, 4, 4))
    upper, scale, lower = block
    assert (upper.reverse, lower.reverse) == (True, False)
    assert isinstance(scale, SinusoidalScale)
    x, _ = batch(16)
    torch.testing.assert_close(block(x)[0], lower(scale(upper(x)[0])[0])[0])
    assert list(block.layer_names()) == ["lower", "scale", "upper"]


@pytest.mark.parametrize("conditioning", ["shift", "affine"])
def test_a_fresh_block_is_the_identity(conditioning):
    block = ImageLDUBlock((3, 4, 4), 2, conditioning=conditioning).double()
    x, c = batch(48, 2)
    z, ladj = block(x, c)
    torch.testing.assert_close(z, x, rtol=1e-14, atol=1e-14)
    assert (ladj == 0).all()


def test_the_kernels_for_whole_flows_leave_images_alone():
    assert anatomy(image_chain((1, 4, 4), 0, blocks=2, scales=1, waves=1)) is None
    assert anatomy(Chain([ImageShift((1, 4, 4))])) is None


def test_an_unknown_conditioning_says_which_there_are():
    with pytest.raises(ArgumentError, match=r"conditioning of images must be 'shift' or 'affine'; got 'full'"):
        ImageLDUBlock((1, 4, 4), conditioning="full")


def test_wrong_shapes_say_what_would_be_right():
    for wrong in ((28, 28), (1, 28, 0), (1, 28, 28.5), "abc", 784, (1, 1, 1, 1), (1, 2, "a")):
        with pytest.raises(ArgumentError, match=r"shape must be \(channels, height, width\), such as"):
            image_shape(wrong)
    assert image_shape(torch.Size([1, 2, 3])) == (1, 2, 3)
