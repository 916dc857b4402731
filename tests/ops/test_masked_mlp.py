from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sinuflow import ArgumentError
from sinuflow.conditioners import MADE
from sinuflow.ops import masked_mlp as kernel
from sinuflow.ops.activations import ACTIVATIONS, activate, activation_slope, squash, squash_slope
from sinuflow.ops.degrees import Stair, hidden_degrees, plan, staircase, staircase_mask

SHAPES = [
    # features, context, outputs, hidden, residual
    (1, 0, 1, (7,), False),
    (1, 2, 3, (7, 5), False),
    (2, 0, 1, (), False),
    (3, 2, 2, (), False),
    (5, 0, 3, (9, 9), True),
    (5, 3, 1, (8, 8, 8), True),
    (4, 0, 2, (200, 150), False),
    (3, 1, 40, (200, 200), True),
    (20, 0, 1, (6, 6), False),
]


def network(features, context, outputs, hidden, residual, activation="relu", dropout=0.0):
    made = MADE(features, outputs, hidden, context, activation, residual, dropout).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()  # also what is masked, which must have no effect
    return made


def numbers(made):
    layers = [*made.layers, made.head]
    return [[getattr(layer, name) for layer in layers] for name in ("weight", "bias", "mask")]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_blocked_network_matches_its_reference(shape, activation):
    made = network(*shape, activation=activation)
    features, context, *_ = shape
    h = torch.randn(context + features, 6, dtype=torch.float64, requires_grad=True)
    weights, biases, masks = numbers(made)
    exact = kernel.MaskedNetwork(made.plan, weights, biases, made.skips, activation, None)
    got, want = kernel.masked_network(exact, h, masks), kernel.reference(exact, h, masks)
    scale = float(want.detach().abs().max())
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12 * scale)
    weight = torch.randn_like(want)
    inputs = [h, *weights, *biases]
    for g, w in zip(torch.autograd.grad(got, inputs, weight), torch.autograd.grad(want, inputs, weight), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-11 * (1 + float(w.abs().max())))


@pytest.mark.parametrize("shape", SHAPES)
def test_output_i_depends_on_the_features_before_i_alone(shape):
    made = network(*shape, activation="tanh")
    features, context, *_ = shape
    x = torch.randn(features, 1, dtype=torch.float64)
    c = torch.randn(context, 1, dtype=torch.float64) if context else None
    jac = torch.autograd.functional.jacobian(lambda t: made(t, c), x)[:, :, 0, :, 0]
    for i in range(features):
        assert (jac[i, :, i:] == 0).all()
        if len(shape[3]) < 1 or shape[3][0] >= features:
            assert (jac[i, :, :i] != 0).all()
    if c is not None:
        jac = torch.autograd.functional.jacobian(lambda t: made(x, t), c)[:, :, 0, :, 0]
        assert (jac != 0).any(dim=(1, 2)).all()  # every feature's parameters see the context


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_through_dropout(activation):
    made = network(3, 0, 2, (9, 9), True, activation, dropout=0.5)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def run(x, *_):
        torch.manual_seed(3)
        return made(x)

    assert gradcheck(run, (x, *made.parameters()))
    assert gradgradcheck(run, (x,))


def test_dropout_drops_and_rescales():
    made = MADE(2, 1, (4000,), dropout=0.25).double()
    with torch.no_grad():
        made.layers[0].weight.zero_()
        made.layers[0].bias.fill_(1.0)
        made.head.weight.fill_(1.0)
        made.head.bias.zero_()
    assert made(torch.zeros(2, 1).double())[1].item() == pytest.approx(4000, rel=0.05)
    assert made(torch.zeros(2, 1).double())[1].item() != 4000
    assert made.eval()(torch.zeros(2, 1).double())[1].item() == 4000


def test_a_network_learns_only_what_it_is_asked_to():
    made = network(3, 0, 1, (9,), False)
    made.layers[0].weight.requires_grad_(False)
    made.head.bias.requires_grad_(False)
    made(torch.randn(3, 4).double()).sum().backward()
    assert made.layers[0].weight.grad is None
    assert made.head.bias.grad is None
    assert made.head.weight.grad is not None


def test_masked_weights_get_no_gradient_and_start_at_zero():
    made = MADE(6, 1, (64, 64))
    made.head.weight.data.normal_()
    made(torch.randn(6, 4)).sum().backward()
    for layer in [*made.layers, made.head]:
        assert (layer.weight.grad[layer.mask == 0] == 0).all()
    assert (made.layers[1].weight[made.layers[1].mask == 0] == 0).all()


def test_a_fresh_network_is_constant():
    made = MADE(3, 2, (8,))
    assert (made(torch.randn(3, 5)) == 0).all()
    assert (made.layers[0].bias != 0).any()


def test_degrees_are_sorted_and_spread_evenly():
    assert hidden_degrees(4, 0, 6) == [1, 1, 2, 2, 3, 3]
    assert hidden_degrees(3, 1, 6) == [0, 0, 1, 1, 2, 2]
    assert hidden_degrees(1, 0, 3) == [1, 1, 1]
    assert hidden_degrees(1, 2, 2) == [0, 0]
    assert hidden_degrees(21, 0, 3) == [1, 10, 20] or hidden_degrees(21, 0, 3) == [1, 11, 20]
    assert hidden_degrees(21, 0, 1) == [1]
    sizes = [hidden_degrees(6, 0, 256).count(m) for m in range(1, 6)]
    assert sum(sizes) == 256
    assert all(size % 16 == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= 16


def test_plan_counts_units_by_degree():
    p = plan(4, 2, 3, (6,))
    assert p.hidden[0].columns == (2, 3, 4, 5, 6)
    assert p.hidden[0].rows == tuple(sum(d <= m for d in hidden_degrees(4, 2, 6)) for m in range(5))
    assert p.head.rows == (3, 6, 9, 12, 12)
    assert [p.head.reach[3 * i] for i in range(4)] == [p.head.columns[i] for i in range(4)]


def test_staircase_covers_the_mask():
    for reach, columns in (([0, 0, 1, 5, 5, 9], 9), ([3] * 100, 64), (list(range(200)), 200), ([1], 1)):
        stairs = staircase(reach, columns, least=2)
        covered = torch.zeros(len(reach), columns, dtype=torch.bool)
        assert stairs.steps[0].start == 0
        assert stairs.steps[-1].stop == len(reach)
        for step, following in zip(stairs.steps, stairs.steps[1:], strict=False):
            assert step.stop == following.start
        for start, stop, width in stairs.steps:
            covered[start:stop, :width] = True
        mask = staircase_mask(reach, columns)
        assert (covered | ~mask).all()
        assert stairs.exact == bool((covered == mask).all())


def test_staircase_keeps_blocks_large():
    assert staircase(list(range(100)), 10).steps == (Stair(0, 100, 99),)
    assert all(stop - start >= 48 for start, stop, _ in staircase(list(range(400)), 400).steps)
    assert len(staircase(list(range(4000)), 4000).steps) <= 8


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_slopes(name):
    x = torch.tensor([-3.0, -0.5, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    (want,) = torch.autograd.grad(activate(name, x).sum(), x)
    torch.testing.assert_close(activation_slope(name, x.detach()), want)
    torch.testing.assert_close(activate(name, x.detach().clone(), inplace=True), activate(name, x.detach()))


def test_squash():
    x = torch.tensor([-1e30, -1.0, 0.0, 2.0, 1e10], dtype=torch.float64, requires_grad=True)
    y = squash(x, 4.0)
    assert (y.abs() <= 4).all()
    torch.testing.assert_close(y[3], 2 / torch.sqrt(torch.tensor(1.25, dtype=torch.float64)))
    assert squash(x, None) is x
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(squash_slope(x.detach(), 4.0), slope)
    assert squash(torch.tensor(1e20), 4.0).item() == pytest.approx(4.0)
    assert squash(torch.tensor(torch.nan), 4.0).isnan()


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"activation must be one of .*relu.*; got 'sine'"):
        MADE(3, activation="sine")
    with pytest.raises(ArgumentError, match=r"hidden layers of one size; got hidden=\(8, 9\)"):
        MADE(3, hidden=(8, 9), residual=True)
