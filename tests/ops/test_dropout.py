"""Dropout masks, and dropout in the kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinuflow.conditioners import MADE
from sinuflow.errors import ArgumentError
from sinuflow.ops.dropout import Dropout
from sinuflow.ops.masked_mlp import MaskedNetwork, reference
from tests.ops.test_flow_program import BATCH, FLOWS, compare, draw, emulated


def seed(first: int, second: int) -> torch.Tensor:
    return torch.tensor([first, second], dtype=torch.int32)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0.1, 0.3, 0.5]))
def test_the_rate_of_dropped_units(first, second, rate):
    factors = Dropout(rate, seed(first, second)).factors(torch.arange(500), 400)
    lost = factors == 0
    assert torch.allclose(factors[~lost], torch.tensor(1 / (1 - rate)))
    limit = 5 * (rate * (1 - rate)) ** 0.5  # five standard deviations
    assert abs(lost.float().mean() - rate) < limit / (500 * 400) ** 0.5
    assert ((lost.float().mean(1) - rate).abs() < limit / 400**0.5).all()
    assert ((lost.float().mean(0) - rate).abs() < limit / 500**0.5).all()


def test_masks_are_uncorrelated():
    def mask(words: torch.Tensor) -> torch.Tensor:
        return (Dropout(0.5, words).factors(torch.arange(300), 300) > 0).double() - 0.5

    one, other = mask(seed(3, 4)), mask(seed(3, 5))
    for a, b in ((one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (one, one.mT), (one, one.flip(0))):
        assert abs((a * b).mean()) < 0.25 * 5 / a.numel() ** 0.5


def dropping_like(networks: list[MADE], dropout: Dropout, wide: int) -> None:
    """Make networks drop the same units as the kernels."""
    for i, made in enumerate(networks):
        parts = [*made.layers, made.head]
        weights, biases, masks = [p.weight for p in parts], [p.bias for p in parts], [p.mask for p in parts]
        network = MaskedNetwork(made.plan, weights, biases, made.skips, made.activation, made.squash, dropout.rate)
        starts = [(i * len(made.layers) + layer) * wide for layer in network.dropout_layers]

        def forward(x, context=None, made=made, network=network, starts=starts, masks=masks):
            keeps = [
                dropout.factors(start + torch.arange(len(made.layers[layer].bias)), x.shape[-1]).to(x.dtype)
                for layer, start in zip(network.dropout_layers, starts, strict=True)
            ]
            result = reference(network, network.first_input(x, context), masks, keeps)
            return result.view(made.plan.features, made.plan.outputs, -1)

        made.forward = forward


@pytest.mark.parametrize(
    ("name", "processors"), [("shift", 132), ("shift", 1), ("full", 132), ("full", 2), ("context", 132)]
)
def test_kernels_drop_the_same_units(name, processors, monkeypatch):
    flow, exact, op = emulated(name, processors, {**FLOWS[name], "dropout": 0.3})
    dropout = Dropout(0.3, seed(-12345, 67890))
    monkeypatch.setattr(op, "dropout", lambda: dropout)
    dropping_like([m for m in exact.modules() if isinstance(m, MADE)], dropout, op.program.shape.units)
    compare(flow, exact, op)


def test_dropout_is_off_in_eval_mode():
    flow, exact, op = emulated("full", 132, {**FLOWS["full"], "dropout": 0.3})
    assert op.dropout_rates() == {0.3}
    assert op.dropout().rate == 0.3
    flow.eval(), exact.eval()
    assert op.dropout() is None
    compare(flow, exact, op)


def test_every_pass_has_a_fresh_mask():
    flow, _, op = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    x, _ = draw(flow)
    (first, _), (second, _) = op.transform(x, None), op.transform(x, None)
    assert (first != second).any()
    with op.without_dropout():
        (first, _), (second, _) = op.transform(x, None), op.transform(x, None)
    assert (first == second).all()
    assert flow.training
    assert op.dropout_rates() == {0.3}


def test_gradients_are_tested_without_dropout():
    _flow, _, op = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    op._gradients_verified = None
    assert op.has_gradients()


def test_second_derivatives_through_dropout_are_refused():
    flow, _, op = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    x = torch.randn(flow.features, BATCH, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"dropout is active: call \.eval\(\)"):
        torch.autograd.grad(op.transform(x, None)[1].sum(), x, create_graph=True)


def test_second_derivatives_follow_the_mode_of_the_forward_pass():
    """Without dropout, even if it is active in the backward pass."""
    flow, _, op = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    x = torch.randn(flow.features, BATCH, requires_grad=True)

    def slope(late: bool) -> torch.Tensor:
        flow.eval()
        ladj = op.transform(x, None)[1]
        flow.train(late)
        return torch.autograd.grad(ladj.sum(), x, create_graph=True)[0]

    torch.testing.assert_close(slope(True), slope(False))


def test_dropout_may_be_changed_later():
    flow, _, op = emulated("shift", 132)
    assert op.dropout_rates() == {0.0}
    for made in flow.modules():
        if isinstance(made, MADE):
            made.dropout = 0.2
    assert op.dropout_rates() == {0.2}
