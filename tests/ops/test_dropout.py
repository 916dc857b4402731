"""Dropout in the kernels: the units that the formula says, and the gradients that follow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinuflow.conditioners import MADE
from sinuflow.errors import ArgumentError
from sinuflow.ops.activations import squash
from sinuflow.ops.dropout import Dropout
from sinuflow.ops.masked_mlp import Network, reference
from tests.ops.test_whole_flow import BATCH, FLOWS, compare, draw, emulated


def seed(first: int, second: int) -> torch.Tensor:
    return torch.tensor([first, second], dtype=torch.int32)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0.1, 0.3, 0.5]))
def test_as_many_units_are_dropped_as_should_be(first, second, rate):
    factors = Dropout(rate, seed(first, second)).factors(torch.arange(500), 400)
    lost = factors == 0
    assert torch.allclose(factors[~lost], torch.tensor(1 / (1 - rate)))
    limit = 5 * (rate * (1 - rate)) ** 0.5  # five standard deviations
    assert abs(lost.float().mean() - rate) < limit / (500 * 400) ** 0.5
    assert ((lost.float().mean(1) - rate).abs() < limit / 400**0.5).all()
    assert ((lost.float().mean(0) - rate).abs() < limit / 500**0.5).all()


def test_units_rows_and_seeds_have_nothing_to_do_with_each_other():
    def drawn(numbers: torch.Tensor) -> torch.Tensor:
        return (Dropout(0.5, numbers).factors(torch.arange(300), 300) > 0).double() - 0.5

    one, other = drawn(seed(3, 4)), drawn(seed(3, 5))
    for a, b in ((one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (one, one.mT), (one, one.flip(0))):
        assert abs((a * b).mean()) < 0.25 * 5 / a.numel() ** 0.5


def dropping_like(networks: list[MADE], dropout: Dropout, wide: int) -> None:
    """Make networks drop what the kernels drop."""
    for i, made in enumerate(networks):
        network = Network(made.plan, made.skips, made.activation, dropout.rate)
        numbers = [(i * len(made.layers) + layer) * wide for layer in network.dropping]

        def forward(x, context=None, made=made, network=network, numbers=numbers):
            h = squash(x, made.squash)
            h = h if context is None else torch.cat([context, h])
            keeps = [
                dropout.factors(start + torch.arange(len(made.layers[layer].bias)), x.shape[-1]).to(x.dtype)
                for layer, start in zip(network.dropping, numbers, strict=True)
            ]
            parts = [*made.layers, made.head]
            found = reference(
                network, h, [p.weight for p in parts], [p.bias for p in parts], [p.mask for p in parts], keeps
            )
            return found.view(made.plan.features, made.plan.outputs, -1)

        made.forward = forward


@pytest.mark.parametrize(
    ("name", "processors"), [("shift", 132), ("shift", 1), ("full", 132), ("full", 2), ("context", 132)]
)
def test_kernels_drop_what_the_formula_says(name, processors, monkeypatch):
    flow, exact, whole = emulated(name, processors, {**FLOWS[name], "dropout": 0.3})
    dropout = Dropout(0.3, seed(-12345, 67890))
    monkeypatch.setattr(whole, "dropout", lambda: dropout)
    dropping_like([m for m in exact.modules() if isinstance(m, MADE)], dropout, whole.shape.units)
    compare(flow, exact, whole)


def test_without_training_nothing_is_dropped():
    flow, exact, whole = emulated("full", 132, {**FLOWS["full"], "dropout": 0.3})
    assert whole.dropout_rates() == {0.3}
    assert whole.dropout().rate == 0.3
    flow.eval(), exact.eval()
    assert whole.dropout() is None
    compare(flow, exact, whole)


def test_every_pass_drops_other_units():
    flow, _, whole = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    x, _ = draw(flow)
    (first, _), (second, _) = whole.transform(x, None), whole.transform(x, None)
    assert (first != second).any()
    with whole.without_dropout():
        (first, _), (second, _) = whole.transform(x, None), whole.transform(x, None)
    assert (first == second).all()
    assert flow.training
    assert whole.dropout_rates() == {0.3}


def test_gradients_are_tried_without_dropout():
    _flow, _, whole = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    whole._gradients_verified = None
    assert whole.has_gradients()


def test_second_derivatives_through_dropout_are_refused():
    flow, _, whole = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    x = torch.randn(flow.features, BATCH, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"dropout is active: call \.eval\(\)"):
        torch.autograd.grad(whole.transform(x, None)[1].sum(), x, create_graph=True)


def test_second_derivatives_are_those_of_the_pass_that_was_made():
    """Without dropout, even if it is active by the time that somebody asks."""
    flow, _, whole = emulated("shift", 132, {**FLOWS["shift"], "dropout": 0.3})
    x = torch.randn(flow.features, BATCH, requires_grad=True)

    def slope(late: bool) -> torch.Tensor:
        flow.eval()
        ladj = whole.transform(x, None)[1]
        flow.train(late)
        return torch.autograd.grad(ladj.sum(), x, create_graph=True)[0]

    torch.testing.assert_close(slope(True), slope(False))


def test_dropout_may_be_changed_later():
    flow, _, whole = emulated("shift", 132)
    assert whole.dropout_rates() == {0.0}
    for made in flow.modules():
        if isinstance(made, MADE):
            made.dropout = 0.2
    assert whole.dropout_rates() == {0.2}
