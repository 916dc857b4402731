from __future__ import annotations

import pytest
import torch

from sinuflow import ArgumentError
from sinuflow.bijections import Chain, SinusoidalLayer
from sinuflow.bijections.image import ImageLDUBlock, ImageShift, image_chain, image_shape
from sinuflow.ops.flow_program import layout
from sinuflow.ops.pixelcnn_inverse import SKEW, fronts
from tests.bijections.image_layers import (
    DOUBLE,
    build,
    every_kind,
    every_shape,
    outputs,
    raster,
    with_and_without_context,
)
from tests.builders import batch, check_round_trip, jacobian


@every_kind
@every_shape
@with_and_without_context
def test_round_trip(kind, shape, context):
    bijection = build(kind, shape, context)
    x, c = batch(bijection.features, context)
    check_round_trip(bijection, x, c, 1e-6)


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
        parameters = outputs(affine, x.mT).squeeze(1)
        scale = torch.exp(2 * torch.tanh(parameters[len(order) :] / 2))
        assert scale.unique().numel() > len(order) // 2
        torch.testing.assert_close(matrix.diagonal(), scale[order])
        # Both the shift and the scale have an effect of their own, also between the channels of a pixel.
        of_scale = jacobian(lambda t, s=affine: outputs(s, t.unsqueeze(1))[len(order) :, 0], x[0])[order][:, order]
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
    jac = jacobian(lambda x: network(x.unsqueeze(1))[:, 0, 0], torch.rand(72, dtype=DOUBLE))
    time = (SKEW * torch.arange(8).unsqueeze(1) + torch.arange(9)).flatten()
    assert (time.unsqueeze(1) > time)[jac != 0].all()
    assert ((time.unsqueeze(1) == time + 1) & (jac != 0)).any()  # so no smaller skew would do
    pixels = torch.cat([front.pixels for front in fronts(8, 9, torch.device("cpu"))])
    assert torch.equal(pixels.sort()[0], torch.arange(72))
    assert (time[pixels].diff() >= 0).all()


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
    assert isinstance(scale, SinusoidalLayer)
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


def test_the_flow_program_does_not_support_images():
    for chain in (image_chain((1, 4, 4), 0, blocks=2, scales=1, waves=1), Chain([ImageShift((1, 4, 4))])):
        assert layout(chain.spec(), chain.named_parameters()) is None


def test_an_unknown_conditioning_says_which_there_are():
    with pytest.raises(ArgumentError, match=r"conditioning of images must be one of shift, affine; got 'full'"):
        ImageLDUBlock((1, 4, 4), conditioning="full")


def test_wrong_shapes_say_what_would_be_right():
    for wrong in ((28, 28), (1, 28, 0), (1, 28, 28.5), "abc", 784, (1, 1, 1, 1), (1, 2, "a")):
        with pytest.raises(ArgumentError, match=r"shape must be \(channels, height, width\), such as"):
            image_shape(wrong)
    assert image_shape(torch.Size([1, 2, 3])) == (1, 2, 3)
