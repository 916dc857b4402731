"""CategoricalMADE against a loop over its variables, and against the laws of probability."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sinuflow import ArgumentError
from sinuflow.flows.categorical import CategoricalMADE
from sinuflow.ops.activations import ACTIVATIONS, activate
from sinuflow.ops.masked_mlp_inverse import incremental_groups

DOUBLE = torch.float64
#: Sizes, hidden layers, context, and activation. More than eight variables take more than one block of degrees.
CASES = [
    ([3, 2, 4], (11, 7), 0, "relu"),
    ([3, 2, 4], (11, 7), 2, "tanh"),
    ([5], (6,), 0, "relu"),
    ([5], (6,), 3, "silu"),
    ([1, 3, 1, 2], (8, 8), 1, "gelu"),
    ([1], (4,), 0, "relu"),
    ([2, 3], (), 2, "relu"),
    ([2, 1, 2, 3, 2, 1, 2, 2, 2, 2], (9, 13, 10), 1, "elu"),
    ([4, 2, 3], (200, 150), 0, "leaky_relu"),  # masks in several steps
    ([2, 3, 2], (1,), 0, "tanh"),  # fewer units than degrees
]
IDS = [f"{'-'.join(map(str, sizes))} {hidden} {context} {name}" for sizes, hidden, context, name in CASES]


def random_model(sizes, hidden=(11, 7), context=0, activation="relu", seed=0, **options):
    """A model whose weights, masked ones included, are far from the initial ones."""
    model = CategoricalMADE(sizes, hidden, context, activation, **options).to(DOUBLE)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 3 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.3
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=DOUBLE))
    return model.eval()


def combinations(sizes):
    """All rows of codes."""
    return torch.tensor(list(itertools.product(*map(range, sizes))))


def contexts(model, rows, seed=1):
    """A context for each row, or None."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, model.context, generator=generator, dtype=DOUBLE) if model.context else None


def random_codes(model, rows, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (rows,), generator=generator) for n in model.sizes], dim=1)


def reference(model, codes, context):
    """The terms by dense layers, one variable after the other."""
    hot = torch.cat(
        [torch.nn.functional.one_hot(k, n).T for k, n in zip(codes.T, model.sizes, strict=True)]
    ).to(model.head.weight)  # fmt: skip
    h = hot if context is None else torch.cat([context.T, hot])
    for layer in model.layers:
        h = activate(model.activation, (layer.weight * layer.mask) @ h + layer.bias[:, None])
    logits = (model.head.weight * model.head.mask) @ h + model.head.bias[:, None]
    terms = []
    for k, own in zip(codes.T, logits.split(list(model.sizes)), strict=True):
        terms.append(own.log_softmax(0)[k, torch.arange(len(k))])
    return torch.stack(terms, dim=1)


@pytest.mark.parametrize(("sizes", "hidden", "context", "activation"), CASES, ids=IDS)
def test_probabilities_of_all_codes_sum_to_one(sizes, hidden, context, activation):
    model = random_model(sizes, hidden, context, activation)
    everything = combinations(sizes)
    for side in (None,) if not context else contexts(model, 3):
        log_p = model.log_prob(everything, None if side is None else side.expand(len(everything), context)).detach()
        assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-12)
    assert len(everything) == 1 or log_p.std() > 0.1  # the weights matter


@pytest.mark.parametrize(("sizes", "hidden", "context", "activation"), CASES, ids=IDS)
def test_terms_and_gradients_are_those_of_a_loop_over_the_variables(sizes, hidden, context, activation):
    model = random_model(sizes, hidden, context, activation)
    codes, side = random_codes(model, 40), contexts(model, 40)
    weights = torch.randn(40, len(sizes), dtype=DOUBLE)
    inputs = [*model.parameters(), *([] if side is None else [side.requires_grad_()])]
    ours, theirs = model.log_probs(codes, side), reference(model, codes, side)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.log_prob(codes, side), theirs.sum(1), rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((weights * terms).sum(), inputs, allow_unused=True) for terms in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)
    assert max(sizes) == 1 or any(float(g.abs().max()) > 1e-3 for g in gradients[0] if g is not None)


@pytest.mark.parametrize(("sizes", "hidden", "context", "activation"), CASES, ids=IDS)
def test_a_term_depends_on_the_variables_before_it_alone(sizes, hidden, context, activation):
    model = random_model(sizes, hidden, context, activation)
    codes, side = random_codes(model, 20), contexts(model, 20)
    before = model.log_probs(codes, side)
    for j, size in enumerate(sizes):
        changed = codes.clone()
        changed[:, j] = (changed[:, j] + 1) % size
        after = model.log_probs(changed, side)
        assert torch.equal(after[:, :j], before[:, :j])
        if size > 1:
            moved = [bool((after[:, i] != before[:, i]).any()) for i in range(j + 1, len(sizes)) if sizes[i] > 1]
            assert all(moved[: len(moved) if hidden != (1,) else 0])  # a single unit passes on the first variable
    if context:
        assert not torch.equal(model.log_probs(codes, 2 * side), before)


@pytest.mark.parametrize(("sizes", "hidden", "context", "activation"), CASES, ids=IDS)
def test_sampling_takes_the_conditional_probabilities_of_the_terms(sizes, hidden, context, activation):
    model = random_model(sizes, hidden, context, activation)
    codes, side = random_codes(model, 15), contexts(model, 15)
    like, terms = model.head.weight.new_empty((0, 15)), []
    with torch.no_grad():
        for k, (logits, inputs) in zip(
            codes.T, incremental_groups(model._network(), like, None if side is None else side.T), strict=True
        ):
            terms.append(logits.log_softmax(0)[k, torch.arange(15)])
            inputs.zero_().scatter_(0, k.unsqueeze(0), 1.0)
    torch.testing.assert_close(torch.stack(terms, dim=1), model.log_probs(codes, side).detach())


def frequencies(codes, sizes):
    """How often each row of :func:`combinations` is among the codes."""
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(len(sizes))])
    return torch.bincount((codes * strides).sum(1), minlength=math.prod(sizes))


def p_value(draws, model, context):
    """Of the hypothesis that draws are from a model."""
    everything = combinations(model.sizes)
    side = None if context is None else context.expand(len(everything), model.context)
    expected = model.log_prob(everything, side).exp().detach().numpy() * len(draws)
    assert expected.min() > 5
    return chisquare(frequencies(draws, model.sizes).numpy(), expected).pvalue


def test_draws_have_the_probabilities_of_the_model():
    model = random_model([3, 1, 2, 4], seed=3)
    draws = model.sample(10_000, None, torch.Generator().manual_seed(5))
    assert draws.shape == (10_000, 4)
    assert draws.dtype == torch.int64
    assert p_value(draws, model, None) > 1e-3


def test_every_row_is_drawn_given_its_own_context():
    model = random_model([3, 1, 2, 4], context=2, seed=3)
    one, other = contexts(model, 2)
    draws = model.sample(12_000, torch.stack([one, other]).repeat(6000, 1), torch.Generator().manual_seed(5))
    assert p_value(draws[::2], model, one) > 1e-3
    assert p_value(draws[1::2], model, other) > 1e-3
    assert p_value(draws[::2], model, other) < 1e-9


def test_excluded_values_are_not_drawn():
    """Each variable is drawn given those before it, and that it is not the excluded one."""
    model = random_model([3, 2, 4], seed=3)
    excluded = [1, -1, 0]
    draws = model.sample(10_000, None, torch.Generator().manual_seed(5), excluded)
    expected = torch.full((24,), 10_000.0, dtype=DOUBLE)
    for row, codes in enumerate(combinations([3, 2, 4])):
        for i, size in enumerate([3, 2, 4]):
            others = codes.repeat(size, 1)
            others[:, i] = torch.arange(size)
            p = model.log_probs(others)[:, i].exp().detach()
            p[torch.arange(size) == excluded[i]] = 0
            expected[row] *= p[codes[i]] / p.sum()
    drawn, possible = frequencies(draws, [3, 2, 4]), expected > 0
    assert possible.sum() == 2 * 2 * 3
    assert drawn[~possible].sum() == 0
    assert chisquare(drawn[possible].numpy(), expected[possible].numpy()).pvalue > 1e-3


def test_draws_depend_on_the_generator_alone():
    model = random_model([3, 4], context=1)
    side = contexts(model, 50)
    first, again, other = (model.sample(50, side, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(4)
    default = model.sample(50, side)
    torch.manual_seed(4)
    assert torch.equal(model.sample(50, side), default)
    assert model.sample(0, side[:0]).shape == (0, 2)


@pytest.mark.parametrize("context", [0, 2])
def test_unknown_codes_are_quantiles_given_those_before_them(context):
    model = random_model([3, 2, 4], context=context, seed=3)
    codes, side = random_codes(model, 50), contexts(model, 50)
    unknown = torch.rand(50, 3) < 0.5
    u = torch.tensor([0.7, 0.5, 0.2], dtype=DOUBLE)
    complete = model.fill_unknown(codes, unknown, u, side)
    assert torch.equal(complete[~unknown], codes[~unknown])
    for i, size in enumerate(model.sizes):
        variants = complete.repeat(size, 1, 1)
        variants[:, :, i] = torch.arange(size)[:, None]
        p = torch.stack([model.log_probs(k, side)[:, i].exp() for k in variants]).detach()
        expected = (p.cumsum(0) <= u[i]).sum(0)
        assert torch.equal(complete[unknown[:, i], i], expected[unknown[:, i]])


def test_values_without_probability_are_never_drawn():
    model = CategoricalMADE([3, 2, 4], hidden=(8,))
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([-1e4, 0, 0, 0, -1e4, 0, 0, 0, -1e4]))
    draws = model.sample(2000, None, torch.Generator().manual_seed(0))
    assert [sorted(set(k.tolist())) for k in draws.T] == [[1, 2], [0], [0, 1, 2]]


def test_extreme_logits_neither_overflow_nor_vanish():
    model = CategoricalMADE([2, 3], hidden=(4,))
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([1e30, 0.0, 3e4, 3e4, -3e4]))
    expected = torch.tensor([[0.0, -math.log(2)], [-1e30, -6e4 - math.log(2)]])
    torch.testing.assert_close(model.log_probs(torch.tensor([[0, 1], [1, 2]])).detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_results_have_the_dtype_of_the_weights(dtype):
    model = random_model([3, 2], context=1).to(dtype)
    codes, side = combinations([3, 2]), torch.ones(6, 1, dtype=dtype)
    log_p = model.log_prob(codes, side).detach()
    assert log_p.dtype == dtype
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-6)
    assert model.sample(5, side[:5]).dtype == torch.int64


def test_dropout_is_off_in_evaluation():
    model, plain = (random_model([3, 2, 3], dropout=p) for p in (0.5, 0.0))
    codes = random_codes(model, 30)
    assert torch.equal(model.log_prob(codes), plain.log_prob(codes))
    model.train()
    assert not torch.equal(model.log_prob(codes), model.log_prob(codes))
    draws = [m.sample(30, None, torch.Generator().manual_seed(0)) for m in (model, plain)]
    assert torch.equal(*draws)


def test_a_new_model_has_equal_probabilities():
    model = CategoricalMADE([2, 5], hidden=(8, 8), context=2)
    torch.testing.assert_close(model.log_prob(combinations([2, 5]), torch.randn(10, 2)).exp(), torch.full((10,), 0.1))


@pytest.mark.parametrize("context", [0, 2])
def test_it_can_start_at_the_frequencies_of_codes(context):
    model = CategoricalMADE([3, 2, 1], hidden=(8,), context=context).to(DOUBLE)
    codes = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0]])
    model.set_frequencies(codes)
    everything = combinations([3, 2, 1])
    marginals = [torch.tensor([3.5, 1.5, 0.5]) / 5.5, torch.tensor([2.5, 2.5]) / 5, torch.ones(1)]
    expected = torch.stack([p[k] for p, k in zip(marginals, everything.T, strict=True)], dim=1).to(DOUBLE)
    terms = model.log_probs(everything, torch.randn(6, context, dtype=DOUBLE) if context else None)
    torch.testing.assert_close(terms.exp().detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": []}, "sizes"),
        ({"sizes": [2, 0]}, "sizes"),
        ({"sizes": [2, -3]}, "sizes"),
        ({"sizes": [2.5]}, "sizes"),
        ({"sizes": ["2"]}, "sizes"),
        ({"sizes": "23"}, "sizes"),
        ({"sizes": 3}, "sizes"),
        ({"sizes": [True]}, "sizes"),
        ({"sizes": [2], "hidden": 8}, "hidden"),
        ({"sizes": [2], "hidden": (0,)}, "hidden"),
        ({"sizes": [2], "hidden": (8, "8")}, "hidden"),
        ({"sizes": [2], "context": -1}, "context"),
        ({"sizes": [2], "context": 1.5}, "context"),
        ({"sizes": [2], "activation": "sine"}, "activation"),
        ({"sizes": [2], "dropout": 1.0}, "dropout"),
        ({"sizes": [2], "dropout": math.nan}, "dropout"),
        ({"sizes": [2], "dropout": None}, "dropout"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ArgumentError, match=f"^(every entry of )?{message} must be"):
        CategoricalMADE(**arguments)


def test_numpy_integers_are_sizes():
    model = CategoricalMADE([np.int64(2), 3], hidden=(np.int32(4),))
    assert model.sizes == (2, 3)
    assert model.spec().to_json()["arguments"]["sizes"] == [2, 3]


def test_every_activation_is_available():
    for name in ACTIVATIONS:
        model = random_model([2, 3], activation=name)
        assert float(model.log_prob(combinations([2, 3])).detach().exp().sum()) == pytest.approx(1)


@pytest.mark.parametrize("context", [0, 2])
def test_draws_have_the_frequencies_that_they_are_matched_to(context):
    model = random_model([3, 2, 5], (16,), context)
    frequencies = torch.tensor([0.5, 0.3, 0.2, 0.9, 0.1, 0.4, 0.3, 0.2, 0.09, 0.01])
    rows = 100_000
    side = contexts(model, rows)
    before = model.frequencies(model.sample(rows, side, torch.Generator().manual_seed(2)))
    assert float((before - frequencies).abs().max()) > 0.05
    model.match_frequencies(frequencies, rows, side, torch.Generator().manual_seed(3))
    after = model.frequencies(model.sample(rows, side, torch.Generator().manual_seed(4)))
    torch.testing.assert_close(after, frequencies, rtol=0, atol=5 * (0.25 * 2 / rows) ** 0.5)
    assert model.frequencies(torch.tensor([[0, 0, 0]])).sum() == pytest.approx(3.0)  # one for each variable
