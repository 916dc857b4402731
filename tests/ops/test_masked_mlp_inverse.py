from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinuflow.ops.degrees import plan, staircase_mask
from sinuflow.ops.masked_mlp import MaskedNetwork
from sinuflow.ops.masked_mlp_inverse import forward_pass, incremental, ordered_adjoint, substitute_shift
from sinuflow.solvers import Root, SolverOptions, parallel_sweeps, substitute

DOUBLE = torch.float64

SHAPES = st.tuples(
    st.integers(1, 20),  # features: more than two blocks of degrees
    st.integers(0, 2),  # context
    st.sampled_from([(), (5,), (24, 24), (24, 24, 24)]),
    st.booleans(),  # residual
    st.sampled_from([None, 3.0]),  # squash
)


def network(features, context, hidden, residual, squash, outputs=1, seed=0, activation="tanh"):
    p = plan(features, context, outputs, hidden)
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(len(layer.reach), layer.columns[-1], dtype=DOUBLE, generator=generator)
        * staircase_mask(layer.reach, layer.columns[-1])
        / max(1, layer.columns[-1]) ** 0.5
        for layer in p.layers
    ]
    biases = [torch.randn(len(w), dtype=DOUBLE, generator=generator) for w in weights]
    skips = tuple(residual and i == 2 for i in range(len(hidden)))
    return MaskedNetwork(p, weights, biases, skips, activation, squash)


def data(features, context, rows=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(features, rows, dtype=DOUBLE, generator=generator)
    c = torch.randn(context, rows, dtype=DOUBLE, generator=generator) if context else None
    return x, c


def outputs(net, x, context):
    """The parameters (D, P, B) at a known x."""
    _, inputs = forward_pass(net, x, context)
    out = torch.addmm(net.biases[-1].unsqueeze(-1), net.weights[-1], inputs[-1])
    return out.view(net.plan.features, net.plan.outputs, -1)


@given(shape=SHAPES, seed=st.integers(0, 1000), activation=st.sampled_from(["relu", "tanh", "gelu"]))
def test_substitution_inverts_a_shift(shape, seed, activation):
    net = network(*shape, seed=seed, activation=activation)
    x, c = data(*shape[:2], seed=seed)
    z = x + outputs(net, x, c)[:, 0]
    torch.testing.assert_close(substitute_shift(net, z, c), x, rtol=1e-10, atol=1e-10)


@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_substitution_inverts_whatever_has_a_scalar_inverse(shape, seed):
    net = network(*shape, outputs=2, seed=seed)
    x, c = data(*shape[:2], seed=seed)
    parameters = outputs(net, x, c)
    z = x * torch.exp(0.1 * parameters[:, 0]) + parameters[:, 1]
    order = []

    def invert(target, p, options):
        order.append(p.shape)
        scale = torch.exp(0.1 * p[:, 0])
        return Root.exact((target - p[:, 1]) / scale, scale)

    result = substitute(incremental(net, z, c), invert, z, SolverOptions())
    torch.testing.assert_close(result.x, x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(result.ladj, -0.1 * parameters[:, 0].sum(0))
    assert order == [(1, 2, 4)] * shape[0]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_interleaved_iterators_do_not_share_buffers(activation):
    """As in a conditioner that is the sum of two."""
    nets = [network(5, 0, (8, 8), False, None, seed=seed, activation=activation) for seed in (0, 1)]
    x, _ = data(5, 0)
    expected = sum(outputs(net, x, None) for net in nets)
    for _ in range(2):  # the second time with the buffers that the first has returned
        for steps in zip(*(incremental(net, x, None) for net in nets), strict=True):
            place = steps[0].features
            torch.testing.assert_close(sum(step.parameters for step in steps), expected[place])
            for step in steps:
                step.push(x[place])


def test_iterators_return_their_buffers():
    net = network(3, 0, (8,), False, None)
    x, _ = data(3, 0)
    buffers = []
    for _ in range(2):
        steps = incremental(net, x, None)
        buffers.append(next(steps).parameters.data_ptr())
        steps.close()
    assert buffers[0] == buffers[1]


def test_each_unit_is_computed_once():
    """The work of substitution is at most that of one pass, however many features there are."""
    for features in (3, 17, 40):
        p = plan(features, 0, 1, (64, 64))
        done = 0
        for block in p.blocks:
            for piece in [*block.known, *(q for pieces in block.fresh for q in pieces)]:
                done += (piece.rows.stop - piece.rows.start) * (piece.columns.stop - piece.columns.start)
        ones = sum(sum(layer.reach) for layer in p.layers)
        assert done == ones  # exactly the entries that are not masked, each once


@given(shape=SHAPES, seed=st.integers(0, 1000), activation=st.sampled_from(["relu", "tanh", "silu"]))
def test_adjoint_is_the_gradient_of_substitution(shape, seed, activation):
    """Against automatic differentiation through the features in turn, and through all numbers."""
    net = network(*shape, outputs=2, seed=seed, activation=activation)
    x, c = data(*shape[:2], seed=seed)
    parameters = outputs(net, x, c)
    z = (x * torch.exp(0.1 * parameters[:, 0]) + parameters[:, 1]).requires_grad_()
    leaves = [t.clone().requires_grad_() for t in (*net.weights, *net.biases)]
    count = len(net.weights)
    live = net._replace(weights=leaves[:count], biases=leaves[count:])
    given_c = None if c is None else c.clone().requires_grad_()
    solved = torch.zeros_like(x)
    for i in range(len(x)):  # one more feature is right after each pass
        p = outputs(live, solved, given_c)
        new = (z - p[:, 1]) * torch.exp(-0.1 * p[:, 0])
        solved = torch.cat([solved[:i], new[i : i + 1], torch.zeros_like(x[i + 1 :])])
    weight = torch.randn(x.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    inputs = [z, *leaves, *([] if given_c is None else [given_c])]
    want = torch.autograd.grad(solved, inputs, weight, allow_unused=True)

    def local(i, grad):
        scale = torch.exp(-0.1 * parameters[i, 0])
        return grad * scale, torch.stack([-0.1 * grad * x[i], -grad * scale])

    of_z, of_context, of_weights, of_biases = ordered_adjoint(net, x, c, weight, local)
    masks = [staircase_mask(layer.reach, layer.columns[-1]) for layer in net.plan.layers]
    flat = [of_z, *(g * m for g, m in zip(of_weights, masks, strict=True)), *of_biases]
    flat += [] if c is None else [of_context]
    wanted = [w if w is None or i == 0 or i > count else w * masks[i - 1] for i, w in enumerate(want)]
    for g, w in zip(flat, wanted, strict=True):
        torch.testing.assert_close(g, torch.zeros_like(g) if w is None else w, rtol=1e-8, atol=1e-10)


def sweep(net, z, c, **options):
    def evaluate(x, rows):
        p = outputs(net, x, None if c is None else c[:, rows])
        return x + p[:, 0], torch.zeros_like(x[0]), p

    def inverse(target, p, _):
        return Root.exact(target - p[:, 0], torch.ones_like(target))

    return parallel_sweeps(evaluate, inverse, z, SolverOptions("fixed_point", **options))


@pytest.mark.parametrize("features", [1, 2, 9])
def test_d_sweeps_are_exact_whatever_the_network(features):
    net = network(features, 2, (24, 24), False, None)
    for weight in net.weights:
        weight.mul_(20)  # far from a contraction
    x, c = data(features, 2)
    z = x + outputs(net, x, c)[:, 0]
    root = sweep(net, z, c, rtol=0, atol=0, max_iterations=features + 1)
    assert root.converged.all()
    scale = float(z.abs().max())
    torch.testing.assert_close(root.x, x, rtol=0, atol=1e-10 * scale)
    if features == 9:
        cut = sweep(net, z, c, rtol=0, atol=1e-12, max_iterations=4)
        assert not cut.converged.any()
        torch.testing.assert_close(cut.x[:3], x[:3], rtol=0, atol=1e-10 * scale)
        assert (cut.iterations == 4).all()


def test_sweeps_stop_row_by_row():
    net = network(9, 0, (24, 24), False, None)
    x, _ = data(9, 0, rows=6)
    z = x + outputs(net, x, None)[:, 0]
    z[:, 3] = net.biases[0].new_tensor(range(9)) * 100  # saturated units: this row is done soon
    root = sweep(net, z, None, rtol=0, atol=1e-13, max_iterations=50)
    assert root.converged.all()
    assert root.iterations.unique().numel() > 1
    again = sweep(net, z[:, 3:4], None, rtol=0, atol=1e-13, max_iterations=50)
    torch.testing.assert_close(again.x, root.x[:, 3:4])
    assert again.iterations[0] == root.iterations[3]
    assert (root.residual <= 1e-13).all()


def test_sweeps_have_a_relative_tolerance():
    net = network(5, 0, (24, 24), False, None)
    x = -1e6 - 1e5 * torch.rand(5, 3, dtype=DOUBLE)
    z = x + outputs(net, x, None)[:, 0]
    root = sweep(net, z, None, rtol=1e-3, atol=0, max_iterations=2)
    assert root.converged.all()


def test_sweeps_report_a_row_that_is_not_a_number():
    net = network(3, 0, (8,), False, None)
    x, _ = data(3, 0)
    z = x + outputs(net, x, None)[:, 0]
    z[1, 2] = torch.nan
    root = sweep(net, z, None, rtol=1e-12, atol=1e-12, max_iterations=20)
    assert root.converged[[0, 1, 3]].all()
    assert not root.converged[2]
