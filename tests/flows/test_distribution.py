from __future__ import annotations

import contextlib

import pytest
import torch
from torch.distributions import Distribution, Independent, Normal, TransformedDistribution, constraints, kl_divergence

from sinuflow import ArgumentError, InversionError
from tests.builders import CONDITIONINGS, batch, trained_flow

DOUBLE = torch.float64


def test_it_is_a_torch_distribution():
    d = trained_flow(3)()
    assert isinstance(d, Distribution)
    assert d.batch_shape == ()
    assert d.event_shape == (3,)
    assert d.has_rsample
    assert d.arg_constraints == {}
    assert d.support.event_dim == 1
    assert bool(d.support.check(torch.zeros(3)))
    assert constraints.is_dependent(d.support) is False


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_shapes_with_context(conditioning):
    flow = trained_flow(3, 2, conditioning)
    c = torch.randn(4, 5, 2, dtype=DOUBLE)
    d = flow(c)
    assert d.batch_shape == (4, 5)
    x = d.sample((7,))
    assert x.shape == (7, 4, 5, 3)
    assert x.is_contiguous()
    log_p = d.log_prob(x)
    assert log_p.shape == (7, 4, 5)
    torch.testing.assert_close(log_p[2, 1, 3], flow(c[1, 3]).log_prob(x[2, 1, 3]))
    assert flow(c[0, 0]).log_prob(x).shape == (7, 4, 5)
    assert d.log_prob(x[0, 0, 0]).shape == (4, 5)  # one row, broadcast over the contexts
    assert d.sample().shape == (4, 5, 3)


def test_shapes_without_context():
    d = trained_flow(3)()
    assert d.sample().shape == (3,)
    assert d.sample((2, 4)).shape == (2, 4, 3)
    assert d.log_prob(d.sample((2, 4))).shape == (2, 4)
    assert d.log_prob(torch.zeros(3, dtype=DOUBLE)).shape == ()
    assert d.sample((0,)).shape == (0, 3)
    assert d.sample(4).shape == (4, 3)


def test_expand():
    flow = trained_flow(3, 2)
    c = torch.randn(4, 2, dtype=DOUBLE)
    wide = flow(c).expand((6, 4))
    assert wide.batch_shape == (6, 4)
    assert wide.event_shape == (3,)
    x = wide.sample((2,))
    assert x.shape == (2, 6, 4, 3)
    torch.testing.assert_close(wide.log_prob(x), flow(c).log_prob(x))
    unconditional = trained_flow(3)().expand([5])
    assert unconditional.batch_shape == (5,)
    assert unconditional.sample().shape == (5, 3)
    assert unconditional.log_prob(torch.zeros(3, dtype=DOUBLE)).shape == (5,)
    with pytest.raises(ArgumentError, match="NaN or infinite"):
        unconditional.log_prob(torch.full((5, 3), torch.nan, dtype=DOUBLE))
    with pytest.raises(ArgumentError, match=r"shape \(2, 3\) does not broadcast with the batch shape \(5,\)"):
        unconditional.log_prob(torch.zeros(2, 3, dtype=DOUBLE))
    loose = trained_flow(3)(validate_args=False).expand([5])
    assert loose.log_prob(torch.full((5, 3), torch.nan, dtype=DOUBLE)).isnan().all()


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_rsample_and_log_prob_agree_with_both(conditioning):
    flow = trained_flow(3, 2, conditioning)
    d = flow(torch.randn(4, 2, dtype=DOUBLE))
    x, log_p = d.rsample_and_log_prob((5,), generator=torch.Generator().manual_seed(1))
    same = d.rsample((5,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(x, same)
    torch.testing.assert_close(log_p, d.log_prob(x), rtol=1e-7, atol=1e-7)
    assert x.requires_grad
    assert log_p.requires_grad
    assert not d.sample((5,)).requires_grad


def test_sampling_is_reproducible():
    d = trained_flow(3)()
    torch.manual_seed(7)
    first = d.sample((5,))
    torch.manual_seed(7)
    torch.testing.assert_close(d.sample((5,)), first)
    a, b = (d.sample((5,), generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    assert not torch.allclose(a, b)
    torch.testing.assert_close(d.sample((5,), generator=torch.Generator().manual_seed(1)), a)


def test_temperature_scales_the_noise():
    flow = trained_flow(3)
    d = flow()
    cold = d.sample((100,), generator=torch.Generator().manual_seed(1), temperature=0.5)
    warm = d.sample((100,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(flow.bijection(cold)[0], 0.5 * flow.bijection(warm)[0])
    assert d.log_prob(cold).mean() > d.log_prob(warm).mean()
    frozen = d.sample((2,), temperature=0.0)
    torch.testing.assert_close(frozen[0], frozen[1])
    x, log_p = d.rsample_and_log_prob((9,), temperature=0.7)
    torch.testing.assert_close(log_p, d.log_prob(x))  # of the flow itself, not of the cooled one
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="temperature must be finite and at least 0"):
            d.sample((2,), temperature=wrong)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_at_any_temperature_draws_are_finite_or_refused(conditioning):
    d = trained_flow(3, 0, conditioning, dtype=torch.float32)()
    drawn = 0
    for temperature in (1e10, 1e18, 1e30, 1e37, 1e38, 1e300):
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            with contextlib.suppress(InversionError):
                assert d.sample((20,), generator, temperature).isfinite().all()
                drawn += 1
    assert drawn
    with pytest.raises(InversionError):
        d.sample((20,), temperature=1e300)


def test_a_log_density_that_overflows_is_refused():
    d = trained_flow(3, dtype=torch.float32)()
    with pytest.raises(InversionError, match=r"the log-density of 4 of 4 draws overflows torch.float32"):
        d.rsample_and_log_prob((4,), temperature=1e25)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite(conditioning, bad):
    flow = trained_flow(3, 0, conditioning, blocks=3)
    x, _ = batch(3, rows=6)
    clean = flow().log_prob(x)
    x[4, 1] = bad
    with pytest.raises(ArgumentError, match=r"value is NaN or infinite in 1 of 6 rows.*validate_args=False"):
        flow().log_prob(x)
    got = flow(validate_args=False).log_prob(x)
    assert got[4].isnan()
    good = [0, 1, 2, 3, 5]
    torch.testing.assert_close(got[good], clean[good])


def test_validation_is_on_whatever_other_libraries_set():
    flow = trained_flow(2)
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)  # as importing zuko does
    try:
        with pytest.raises(ArgumentError, match="NaN or infinite"):
            flow().log_prob(torch.full((2,), torch.nan, dtype=DOUBLE))
    finally:
        Distribution.set_default_validate_args(before)


def test_bad_contexts():
    flow = trained_flow(3, 2)
    with pytest.raises(ArgumentError, match=r"conditional: call it with a context of shape \(\.\.\., 2\)"):
        flow()
    with pytest.raises(ArgumentError, match=r"context must have shape \(\.\.\., 2\); got \(4, 3\)"):
        flow(torch.zeros(4, 3, dtype=DOUBLE))
    with pytest.raises(ArgumentError, match="context is NaN or infinite in 1 of 4 rows"):
        flow(torch.tensor([[0.0, 0.0], [0.0, torch.nan], [0.0, 1.0], [1.0, 1.0]], dtype=DOUBLE))
    flow(torch.full((4, 2), torch.nan, dtype=DOUBLE), validate_args=False)
    with pytest.raises(ArgumentError, match=r"built with context=0, but was given a context of shape \(4, 2\)"):
        trained_flow(3)(torch.zeros(4, 2, dtype=DOUBLE))
    with pytest.raises(ArgumentError, match=r"value has dtype torch.float32, but the parameters have torch.float64"):
        trained_flow(3)().log_prob(torch.zeros(4, 3))


def test_as_a_transform_it_composes():
    flow = trained_flow(3)
    base = Independent(Normal(torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)), 1)
    d = TransformedDistribution(base, [flow.transform().inv])
    x = flow().sample((6,))
    torch.testing.assert_close(d.log_prob(x), flow().log_prob(x))
    noise = flow.transform()(d.sample((2000,)))
    torch.testing.assert_close(noise.std(0), torch.ones(3, dtype=DOUBLE), atol=0.1, rtol=0)
    affine = torch.distributions.AffineTransform(torch.tensor(1.0, dtype=DOUBLE), torch.tensor(2.0, dtype=DOUBLE))
    scaled = TransformedDistribution(d, [torch.distributions.IndependentTransform(affine, 1)])
    torch.testing.assert_close(
        scaled.log_prob(1 + 2 * x), flow().log_prob(x) - 3 * torch.log(torch.tensor(2.0)).double()
    )


def test_transform_protocol():
    flow = trained_flow(3, 2)
    c = torch.randn(2, dtype=DOUBLE)
    t = flow.transform(c)
    x, _ = batch(3)
    z = t(x)
    torch.testing.assert_close(z, flow.bijection(x, c)[0])
    torch.testing.assert_close(t.inv(z), x, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(t.log_abs_det_jacobian(x, z), flow.bijection(x, c)[1])
    torch.testing.assert_close(t.inv.log_abs_det_jacobian(z, x), -flow.bijection(x, c)[1])
    assert t.bijective
    assert t.domain.event_dim == t.codomain.event_dim == 1
    assert t == flow.transform(c)
    assert t != flow.transform(c + 1)
    assert t != 3
    assert isinstance(hash(t), int)
    cached = t.with_cache()
    assert cached(x) is cached(x)


def test_fits_zuko():
    zuko = pytest.importorskip("zuko")
    flow = trained_flow(3)
    base = Independent(Normal(torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)), 1)
    single = zuko.distributions.NormalizingFlow(flow.transform(), base)
    x = flow().sample((6,))
    torch.testing.assert_close(single.log_prob(x), flow().log_prob(x))
    drawn, log_p = single.rsample_and_log_prob((4,))
    torch.testing.assert_close(log_p, flow().log_prob(drawn), rtol=1e-6, atol=1e-6)
    # A spline of zuko's in front of the flow, as one lazy flow of zuko's.
    spline = zuko.flows.NSF(3, transforms=1, hidden_features=(8,)).double()
    both = zuko.flows.Flow(
        [spline.transform, zuko.lazy.UnconditionalTransform(lambda: flow.transform())],
        zuko.lazy.UnconditionalDistribution(lambda: base),
    )
    d = both()
    x = d.sample((5,))
    z, ladj = spline().transform.call_and_ladj(x)
    torch.testing.assert_close(d.log_prob(x), flow().log_prob(z) + ladj, rtol=1e-6, atol=1e-6)


def test_reverse_kl_training_finds_a_gaussian():
    """Variational inference: gradients through rsample decrease the loss."""
    torch.manual_seed(0)
    flow = trained_flow(2, 0, "shift", blocks=1, hidden=(8,), ranges={"strength": 0.3, "frequency": (0.1, 1.0)})
    target = torch.distributions.MultivariateNormal(
        torch.tensor([1.0, -1.0], dtype=DOUBLE), torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=DOUBLE)
    )
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-2)
    losses = []
    for _ in range(150):
        x, log_q = flow().rsample_and_log_prob((128,))
        loss = (log_q - target.log_prob(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.5
    assert sum(losses[-20:]) / 20 < 0.1


def test_kl_and_entropy_are_left_to_monte_carlo():
    d = trained_flow(2)()
    with pytest.raises(NotImplementedError):
        d.entropy()
    with pytest.raises(NotImplementedError):
        kl_divergence(d, d)
