"""MixedFlow: a density over codes and numbers, as the product of its two terms."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch.distributions import Distribution

import sinuflow
from looks_trained import look_trained
from sinuflow import ArgumentError, Flow, SinusoidalFlow, fit
from sinuflow.bijections import Chain, ElementwiseAffine, LDUBlock
from sinuflow.flows import StudentT
from sinuflow.flows.categorical import CategoricalMADE
from sinuflow.flows.mixed import MixedFlow
from sinuflow.training.engine import EagerEngine

DOUBLE = torch.float64


def random_flow(sizes=(3, 2), features=2, context=0, conditioning="full", seed=0, dtype=DOUBLE, **options) -> MixedFlow:
    """A small mixed flow with drawn parameters."""
    categories = CategoricalMADE(sizes, (11, 7), context, **options)
    flow = SinusoidalFlow(features, context + sum(sizes), conditioning, blocks=2, scales=1, hidden=(12,), **options)
    look_trained(flow.bijection, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in categories.parameters():
            p.copy_((2 / p.shape[-1] ** 0.5 if p.dim() == 2 else 0.3) * torch.randn(p.shape, generator=generator))
    return MixedFlow(categories, flow).to(dtype).eval()


def combinations(sizes):
    return torch.tensor(list(itertools.product(*map(range, sizes))), dtype=DOUBLE)


def rows_of(flow, count, seed=1, dtype=DOUBLE):
    """Rows, and a context or None."""
    generator = torch.Generator().manual_seed(seed)
    codes = [torch.randint(n, (count, 1), generator=generator).to(dtype) for n in flow.categories.sizes]
    x = torch.randn(count, flow.continuous, generator=generator, dtype=dtype)
    c = torch.randn(count, flow.context, generator=generator, dtype=dtype) if flow.context else None
    return torch.cat([*codes, x], dim=1), c


def distance_from_normal(z):
    """Kolmogorov's and Smirnov's statistic, which is above 1.95 / sqrt(n) in one of a thousand samples."""
    ranks = (torch.arange(len(z)) + 0.5) / len(z)
    return float((torch.special.ndtr(z.sort().values) - ranks).abs().max())


# ---------------------------------------------------------------- density


@pytest.mark.parametrize("conditioning", ["full", "shift", "none"])
@pytest.mark.parametrize("context", [0, 2])
def test_the_density_sums_and_integrates_to_one(conditioning, context):
    flow = random_flow([3, 1, 2], features=1, context=context, conditioning=conditioning)
    grid = torch.linspace(-60, 60, 12_001, dtype=DOUBLE)
    masses = []
    with torch.no_grad():
        d = flow(torch.tensor([0.3, -1.0], dtype=DOUBLE) if context else None)
        for codes in combinations([3, 1, 2]):
            rows = torch.cat([codes.expand(len(grid), 3), grid.unsqueeze(1)], dim=1)
            masses.append(float(torch.trapezoid(d.log_prob(rows).exp(), grid)))
    assert math.fsum(masses) == pytest.approx(1, abs=1e-5)
    assert max(masses) > 2 * min(masses)  # not just a uniform distribution


@pytest.mark.parametrize("context", [0, 2])
def test_the_log_density_is_the_sum_of_its_terms(context):
    flow = random_flow(context=context)
    rows, c = rows_of(flow, 30)
    codes, x = rows[:, :2].long(), rows[:, 2:]
    hot = torch.cat([torch.nn.functional.one_hot(k, n) for k, n in zip(codes.T, (3, 2), strict=True)], dim=1)
    inner = hot.to(DOUBLE) if c is None else torch.cat([c, hot.to(DOUBLE)], dim=1)
    discrete = flow.categories.log_prob(codes, c)
    continuous = Flow(flow.bijection, flow.base)(inner).log_prob(x)
    torch.testing.assert_close(flow(c).log_probs(rows), torch.stack([discrete, continuous], dim=1))
    torch.testing.assert_close(flow(c).log_prob(rows), discrete + continuous)
    torch.testing.assert_close(flow.given_codes(codes, c).log_prob(x), continuous)
    others = flow.given_codes(codes.flip(0), c).log_prob(x)
    assert float((others - continuous).detach().abs().max()) > 0.1


def test_a_base_with_heavy_tails_is_kept():
    categories = CategoricalMADE([2], hidden=(4,))
    chain = Chain([LDUBlock(1, 2, scales=1, hidden=(4,)), ElementwiseAffine(1)])
    flow = MixedFlow(categories, Flow(chain, StudentT(1, 3.0)))
    far = torch.tensor([[1.0, 40.0]])
    student = torch.distributions.StudentT(3.0).log_prob(torch.tensor(40.0)) - math.log(2)
    assert flow().log_prob(far).item() == pytest.approx(float(student), rel=1e-4)


# ---------------------------------------------------------------- a distribution with a batch shape


def test_it_is_a_torch_distribution():
    d = random_flow()()
    assert isinstance(d, Distribution)
    assert (d.batch_shape, d.event_shape, d.has_rsample) == ((), (4,), False)
    with pytest.raises(NotImplementedError):
        d.rsample()


def test_shapes_without_context():
    d = random_flow()()
    assert d.sample().shape == (4,)
    assert d.sample((2, 5)).shape == (2, 5, 4)
    assert d.sample(7).shape == (7, 4)
    assert d.sample((0,)).shape == (0, 4)
    x = d.sample((2, 5))
    assert d.log_prob(x).shape == (2, 5)
    assert d.log_probs(x).shape == (2, 5, 2)
    assert d.log_prob(x[0, 0]).shape == ()
    torch.testing.assert_close(d.log_prob(x)[1, 3], d.log_prob(x[1, 3]))


def test_contexts_broadcast_against_rows():
    flow = random_flow(context=2)
    rows, c = rows_of(flow, 4)
    d = flow(c.view(2, 2, 2))
    assert d.batch_shape == (2, 2)
    assert d.sample().shape == (2, 2, 4)
    x = d.sample((3,))
    assert x.shape == (3, 2, 2, 4)
    log_p = d.log_prob(x)
    assert log_p.shape == (3, 2, 2)
    torch.testing.assert_close(log_p[2, 1, 0], flow(c[2]).log_prob(x[2, 1, 0]))
    assert d.log_prob(rows[0]).shape == (2, 2)  # one row, broadcast over the contexts
    torch.testing.assert_close(d.log_prob(rows[0])[0, 1], flow(c[1]).log_prob(rows[0]))
    torch.testing.assert_close(flow(c[:1]).log_prob(rows), flow(c[0]).log_prob(rows))
    torch.testing.assert_close(flow(c).log_prob(rows)[3], flow(c[3]).log_prob(rows[3]))


def test_every_row_is_drawn_given_its_own_context_and_codes():
    categories = CategoricalMADE([2], hidden=(), context=1)
    inner = random_flow([1, 1], features=1, context=1)  # of a context of 3
    flow = MixedFlow(categories.to(DOUBLE), Flow(inner.bijection, inner.base)).eval()
    with torch.no_grad():  # the code is the sign of the context
        categories.head.weight[1, 0] = 1e3
    c = torch.tensor([[-1.0], [1.0], [2.0]], dtype=DOUBLE)
    draws = flow(c).sample((400,), generator=torch.Generator().manual_seed(0))
    assert [set(k.tolist()) for k in draws[..., 0].T] == [{0.0}, {1.0}, {1.0}]
    for i, k in enumerate([0, 1, 1]):
        given = torch.tensor([[float(c[i]), 1.0 - k, float(k)]], dtype=DOUBLE)
        own = flow.bijection(draws[:, i, 1:], given)[0].detach().flatten()
        assert distance_from_normal(own) < 1.95 / 400**0.5


def test_draws_depend_on_the_generator_alone():
    d = random_flow()()
    first, again, other = (d.sample((20,), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_have_the_density_of_the_model():
    flow = random_flow([3, 2], features=1)
    draws = flow().sample((4000,), torch.Generator().manual_seed(3))
    index = (2 * draws[:, 0] + draws[:, 1]).long()
    with torch.no_grad():
        expected = flow.categories.log_prob(combinations([3, 2]).long()).exp()
        z, _ = flow.bijection(draws[:, 2:], flow.inner_context(draws[:, :2].long(), None))
    assert float((torch.bincount(index, minlength=6) / 4000 - expected).abs().max()) < 0.03
    for k in range(6):
        own = z[index == k].flatten()
        assert len(own) > 20
        assert distance_from_normal(own) < 1.95 / len(own) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_results_have_the_dtype_of_the_flow(dtype):
    flow = random_flow(dtype=dtype)
    assert flow().sample((3,)).dtype == dtype
    assert flow().log_prob(rows_of(flow, 3, dtype=dtype)[0]).dtype == dtype
    assert flow.double()().sample((3,)).dtype == DOUBLE


def test_double_precision_changes_little():
    flow = random_flow(dtype=torch.float32)
    rows, _ = rows_of(flow, 20, dtype=torch.float32)
    before = flow().log_prob(rows)
    torch.testing.assert_close(flow.double()().log_prob(rows.double()).float(), before, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.index_fill(1, torch.tensor([0]), 3.0),  # would be the first value of the next feature
        lambda x: x.index_fill(1, torch.tensor([1]), 2.0),
        lambda x: x.index_fill(1, torch.tensor([0]), -1.0),
        lambda x: x.index_fill(1, torch.tensor([0]), 0.5),
        lambda x: x.index_fill(1, torch.tensor([0]), math.nan),
        lambda x: x.index_fill(1, torch.tensor([1]), math.inf),
        lambda x: x.index_fill(1, torch.tensor([2]), math.nan),
    ],
)
def test_codes_that_stand_for_nothing_are_refused(change):
    flow = random_flow()
    rows, _ = rows_of(flow, 5)
    with pytest.raises(ArgumentError, match="5 of 5 rows"):
        flow().log_prob(change(rows))
    with pytest.raises(ArgumentError, match=r"5 of 5 rows|x must have at least one row, and no NaN"):
        flow.initialize(change(rows))


@pytest.mark.parametrize(
    ("context", "given", "rows", "message"),
    [
        (2, None, (3, 4), r"conditional: call it with a context of shape \(..., 2\)"),
        (0, (3, 2), (3, 4), r"built with context=0, but was given a context of shape \(3, 2\)"),
        (2, (3, 1), (3, 4), r"context must have shape \(..., 2\); got \(3, 1\)"),
        (0, None, (3, 5), r"value must have shape \(..., 4\); got \(3, 5\)"),
        (2, (2, 2), (3, 4), r"does not broadcast with the batch shape \(2,\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(context, given, rows, message):
    flow = random_flow(context=context)
    with pytest.raises(ArgumentError, match=message):
        flow(None if given is None else torch.zeros(given, dtype=DOUBLE)).log_prob(torch.zeros(rows, dtype=DOUBLE))


def test_parts_that_do_not_fit_are_refused():
    categories = CategoricalMADE([3, 2], hidden=(4,))
    flow = SinusoidalFlow(2, context=5, blocks=1, hidden=(4,))
    with pytest.raises(ArgumentError, match=r"context of 4, but the categories have 0 and 5 one-hot inputs"):
        MixedFlow(categories, SinusoidalFlow(2, context=4, blocks=1, hidden=(4,)))
    with pytest.raises(ArgumentError, match="categories must be a CategoricalMADE"):
        MixedFlow(flow, flow)
    with pytest.raises(ArgumentError, match="flow must be a Flow"):
        MixedFlow(categories, categories)
    conditional = MixedFlow(CategoricalMADE([2], (4,), context=5), SinusoidalFlow(1, 7, blocks=1, hidden=(4,)))
    with pytest.raises(ArgumentError, match="continuous features alone"):
        MixedFlow(categories, conditional)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("context", [0, 2])
def test_it_survives_a_file(context, dtype, tmp_path):
    flow = random_flow([3, 1, 2], context=context, dtype=dtype, activation="tanh", dropout=0.1)
    flow.save(tmp_path / "m")
    again = sinuflow.load(tmp_path / "m")
    assert isinstance(again, MixedFlow)
    assert again.config == flow.config
    assert not again.training
    rows, c = rows_of(flow, 10, dtype=dtype)
    assert torch.equal(again(c).log_probs(rows), flow(c).log_probs(rows))
    assert torch.equal(*(f(c).sample((4,), torch.Generator().manual_seed(0)) for f in (flow, again)))
    assert {name: b.dtype for name, b in again.named_buffers()} == {name: b.dtype for name, b in flow.named_buffers()}
    again.save(tmp_path / "again")


def test_parameters_that_are_not_finite_are_not_saved(tmp_path):
    for name in ("categories.head.bias", "bijection.bijections.0.conditioner.head.bias"):
        flow = random_flow()
        flow.get_parameter(name).data[0] = math.nan
        with pytest.raises(sinuflow.StorageError, match="NaN or infinite"):
            flow.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- training


def data(rows, seed=0):
    """Two codes and a number that depend on each other: k2 is k1 above 0, and x lies around 2 k1 - 2, by k2."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randint(3, (rows, 1), generator=generator)
    same = torch.rand(rows, 1, generator=generator) < 0.9
    second = torch.where(same, (k > 0).long(), torch.randint(2, (rows, 1), generator=generator))
    x = 0.8 * (k - 1) + 0.2 * (1 + second) * torch.randn(rows, 1, generator=generator)
    return torch.cat([k.float(), second.float(), x], dim=1)


def new_flow(seed=0):
    torch.manual_seed(seed)
    options = {"hidden": (16,), "dropout": 0.1}
    categories = CategoricalMADE([3, 2], **options)
    return MixedFlow(categories, SinusoidalFlow(1, 5, "full", blocks=2, scales=1, waves=2, **options))


def quick(flow, **options):
    settings = {"steps": 100, "batch_size": 64, "validate_every": 20, "learning_rate": 5e-3, "progress": False}
    return fit(flow, data(400), data(300, seed=1), device="cpu", **{**settings, **options})


def test_training_learns_what_depends_on_what():
    flow, validation = new_flow(), data(300, seed=1)
    result = quick(flow, steps=250)
    shares = [torch.bincount(k.long()) / 400 for k in data(400)[:, :2].T]
    independent = sum(float(p[k.long()].log().mean()) for p, k in zip(shares, validation[:, :2].T, strict=True))
    with torch.no_grad():
        discrete, continuous = flow().log_probs(validation).mean(0).tolist()
    assert result.best_nll == pytest.approx(-discrete - continuous, abs=1e-4)
    # The information that k1 has on k2 is 0.39 nats.
    assert discrete > independent + 0.3
    x = validation[:, 2]
    assert continuous > float(torch.distributions.Normal(x.mean(), x.std()).log_prob(x).mean()) + 0.5


def test_it_starts_at_the_frequencies_of_the_training_rows():
    flow = new_flow()
    quick(flow, steps=1, learning_rate=1e-12)
    codes = data(400)[:, :2].long()
    expected = [(torch.bincount(k, minlength=n) + 0.5) / (400 + 0.5 * n) for k, n in zip(codes.T, (3, 2), strict=True)]
    terms = flow.categories.log_probs(codes).exp()
    torch.testing.assert_close(terms, torch.stack([p[k] for p, k in zip(expected, codes.T, strict=True)], dim=1))


class StopError(Exception):
    pass


@pytest.mark.parametrize("options", [{}, {"ema": 0.9, "optimizer": "adamw", "patience": 2}], ids=["plain", "average"])
def test_a_resumed_run_ends_with_identical_weights(options, tmp_path, monkeypatch):
    whole, broken, resumed = new_flow(), new_flow(), new_flow(seed=9)
    reference = quick(whole, **options)
    original = EagerEngine.advance

    def advancing(self, now, most):
        if now == 67:
            raise StopError
        return original(self, now, most)

    with monkeypatch.context() as patch:
        patch.setattr(EagerEngine, "advance", advancing)
        with pytest.raises(StopError):
            quick(broken, checkpoint=tmp_path, checkpoint_steps=11, **options)
    result = quick(resumed, checkpoint=tmp_path, checkpoint_steps=11, resume=True, **options)
    for (name, ours), theirs in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert result.part_steps == reference.part_steps
    assert [r["val_nll"] for r in result.history] == [r["val_nll"] for r in reference.history]


def test_a_copy_is_independent():
    flow = new_flow()
    twin = copy.deepcopy(flow)
    quick(flow, steps=5)
    assert not torch.equal(flow.categories.head.bias, twin.categories.head.bias)
    assert float(twin.categories.head.bias.detach().abs().max()) == 0
