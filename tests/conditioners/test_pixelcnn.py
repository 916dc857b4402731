from __future__ import annotations

import pytest
import torch

from sinuflow import ArgumentError
from sinuflow.conditioners.pixelcnn import MaskedConvolution, PixelCNN, owners

SIZE = 7


def drawn(shape, context=0, seed=0, **options) -> PixelCNN:
    """A network in which nothing is zero by chance, and no rectifier is shut for good."""
    network = PixelCNN(shape, context, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, MaskedConvolution):
                module.weight.copy_(torch.rand(module.weight.shape, generator=generator) + 0.1)
                module.bias.fill_(1.0)
    return network


def seen(network: PixelCNN, context: torch.Tensor | None = None) -> torch.Tensor:
    """Whether output (c, i, j) depends on input (d, k, l): shape (C, H, W, C, H, W)."""
    x = torch.rand(*network.shape, dtype=torch.float64)
    jac = torch.autograd.functional.jacobian(lambda t: network(t.view(-1, 1), context).view(network.shape), x)
    return jac != 0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_an_output_sees_what_is_before_it_and_nothing_else(channels, blocks):
    network = drawn((channels, SIZE, SIZE), channels=4, residual_blocks=blocks)
    found = seen(network)
    reach = 3 + blocks
    for i in range(SIZE):
        for j in range(SIZE):
            for c in range(channels):
                want = torch.zeros(channels, SIZE, SIZE, dtype=torch.bool)
                want[:c, i, j] = True
                # In its own row an output sees `reach` columns back; each row above adds what its
                # convolution sees to the right.
                want[:, i, max(0, j - reach) : j] = True
                for up in range(1, min(i, reach) + 1):
                    right = min(3 + up - 1, reach)
                    want[:, i - up, max(0, j - reach) : j + right + 1] = True
                assert torch.equal(found[c, i, j], want), (c, i, j)


def test_masked_weights_have_no_effect():
    network = drawn((3, 5, 5), channels=4)
    x = torch.randn(75, 2, dtype=torch.float64)
    before = network(x)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, MaskedConvolution):
                module.weight.add_(100 * (1 - module.mask))
    assert torch.equal(network(x), before)
    network(x).sum().backward()
    for module in network.modules():
        if isinstance(module, MaskedConvolution):
            assert (module.weight.grad[module.mask == 0] == 0).all()


def test_masks_are_not_stored_and_follow_the_module():
    network = PixelCNN((1, 4, 4))
    assert not any("mask" in name for name in network.state_dict())
    assert network.double().first.mask.dtype == torch.float64


def test_context_reaches_every_output():
    network = drawn((3, 5, 5), context=2, channels=4)
    x = torch.rand(75, 1, dtype=torch.float64)
    context = torch.rand(2, 1, dtype=torch.float64)
    jac = torch.autograd.functional.jacobian(lambda k: network(x, k), context)
    assert (jac != 0).all()
    for layer in (network.given, *(block.given for block in network.blocks)):  # each of them alone
        with torch.no_grad():
            kept = layer.weight.clone()
            others = [b for b in (network.given, *(k.given for k in network.blocks)) if b is not layer]
            saved = [b.weight.clone() for b in others]
            for other in others:
                other.weight.zero_()
        assert (torch.autograd.functional.jacobian(lambda k: network(x, k), context) != 0).any()
        assert layer.bias is None
        with torch.no_grad():
            for other, weight in zip(others, saved, strict=True):
                other.weight.copy_(weight)
        assert torch.equal(layer.weight, kept)


def test_a_fresh_network_is_zero_and_learns():
    network = PixelCNN((3, 6, 6), context=2)
    x, context = torch.randn(108, 4), torch.randn(2, 4)
    out = network(x, context)
    assert out.shape == (108, 1, 4)
    assert (out == 0).all()
    (out * torch.randn_like(out)).sum().backward()
    assert network.head.weight.grad.abs().max() > 0


def test_maps_are_spread_evenly():
    for maps in (3, 8, 16, 32):
        counts = owners(maps, 3).bincount(minlength=3)
        assert counts.min() >= 1
        assert counts.max() - counts.min() <= 1
        assert (owners(maps, 3).diff() >= 0).all()


def test_sizes_are_the_papers():
    network = PixelCNN((1, 28, 28))
    assert network.first.weight.shape == (32, 1, 4, 7)  # the upper half of 7x7
    assert [block.look.weight.shape for block in network.blocks] == [(16, 16, 2, 3)] * 2
    assert network.head.weight.shape == (1, 32, 1, 1)


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"channels must be at least 3, .* got 2"):
        PixelCNN((3, 4, 4), channels=2)
    with pytest.raises(ArgumentError, match="residual_blocks must be at least 0; got -1"):
        PixelCNN((3, 4, 4), residual_blocks=-1)
