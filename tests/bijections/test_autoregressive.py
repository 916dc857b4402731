"""Autoregressive bijections: implicit gradients of their inverses."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from sinuflow import SinuflowError
from sinuflow.bijections import Autoregressive
from sinuflow.conditioners import MADE, Conditioner
from sinuflow.transformers import Affine
from tests.builders import batch, trained


class Dropped(Conditioner):
    """A linear map with dropout, whose gradients are those of the default adjoint."""

    def __init__(self, features: int, outputs: int, context: int = 0, dropout: float = 0.5) -> None:
        super().__init__(features, outputs, context)
        self.weight = nn.Parameter(0.5 * torch.randn(outputs, features, features))
        self.bias = nn.Parameter(torch.randn(outputs))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, context=None):
        return self.drop((self.weight.tril(-1) @ x).transpose(0, 1) + self.bias.unsqueeze(-1))


def build(conditioner: Conditioner, transformer=None) -> Autoregressive:
    return trained(Autoregressive(transformer or Affine(), conditioner))


def gradients(layer: Autoregressive, train: bool = False) -> list[torch.Tensor]:
    """Of a loss of the inverse; with ``train``, the backward pass takes place in training mode."""
    x, ladj = layer.eval().inverse(batch(layer.features)[0])
    layer.train(train)
    return list(torch.autograd.grad(x.square().sum() + ladj.sum(), list(layer.parameters())))


def test_two_threads_differentiate_through_one_layer():
    """The first to enter the backward pass is the first to leave it, while the second is in the middle."""
    second_is_in, first_is_out = threading.Event(), threading.Event()

    class Meeting(Dropped):
        def adjoint(self, *args):
            if threading.current_thread() is first:
                second.start()
                assert second_is_in.wait(30)
            elif threading.current_thread() is second:
                second_is_in.set()
                assert first_is_out.wait(30)
            return super().adjoint(*args)

    def differentiate():
        found.append(gradients(layer))
        first_is_out.set()

    layer, found = build(Meeting(3, 2)), []
    parameters = dict(layer.named_parameters())
    first, second = (threading.Thread(target=differentiate) for _ in range(2))
    first.start()
    first.join()
    second.join()
    assert len(found) == 2
    assert [id(p) for p in layer.parameters()] == [id(p) for p in parameters.values()]
    for got in found:
        for g, w in zip(got, gradients(layer), strict=True):
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("conditioner", [Dropped(3, 2, dropout=0.0), MADE(3, 2, hidden=(8,))], ids=["default", "MADE"])
def test_hooks_of_parameters_run_once_and_frozen_ones_are_allowed(conditioner):
    layer = build(conditioner)
    want = gradients(layer)
    *others, last = layer.parameters()
    last.register_hook(lambda g: 3 * g)
    others[0].requires_grad_(False)
    layer.inverse(batch(3)[0])[0].square().sum().backward()
    assert others[0].grad is None
    layer.zero_grad()
    others[0].requires_grad_()
    *same, tripled = gradients(layer)
    for g, w in zip([*same, tripled / 3], want, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("conditioner", [Dropped(3, 2), MADE(3, 2, hidden=(16,), dropout=0.5)], ids=["default", "MADE"])
def test_gradients_in_training_mode_are_those_of_the_map_that_was_inverted(conditioner):
    layer = build(conditioner)
    for g, w in zip(gradients(layer, train=True), gradients(layer), strict=True):
        torch.testing.assert_close(g, w)
    layer.train()
    assert all(m.training for m in layer.modules())


def test_a_parameter_of_transformer_and_conditioner_has_the_sum_of_both_gradients():
    class Biased(Affine):
        def __init__(self, conditioner: Conditioner) -> None:
            super().__init__()
            self.bias = conditioner.bias

        def forward(self, x, h):
            z, ladj = super().forward(x, h)
            return z + self.bias.sum(), ladj

        def inverse(self, z, h, options):
            return super().inverse(z - self.bias.sum(), h, options)

    conditioner = Dropped(3, 2, context=1)
    layer = build(conditioner, Biased(conditioner))
    z, c = batch(3, 1)
    parameters = [c.requires_grad_(), *layer.parameters()]

    def inverse(*_):
        return layer.inverse(z, c)[0]

    assert len(parameters) == 3
    assert torch.autograd.gradcheck(inverse, parameters)


class Scripted(Conditioner):
    """A conditioner with a TorchScript submodule, which keeps its own parameters."""

    def __init__(self, features: int) -> None:
        super().__init__(features, 2)
        self.network = torch.jit.script(nn.Linear(1, 2))

    def forward(self, x, context=None):
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1]]).cumsum(0)
        return self.network(before.unsqueeze(-1)).transpose(1, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_parameters_that_cannot_be_replaced_are_refused():
    layer = Autoregressive(Affine(), Scripted(3)).double()
    assert all(g.abs().max() > 0 for g in gradients(layer))
    assert all(g.abs().max() > 0 for g in gradients(layer, train=True))
    next(layer.parameters()).register_hook(lambda g: g)
    with pytest.raises(SinuflowError, match="cannot replace the parameters of a RecursiveScriptModule"):
        gradients(layer)
