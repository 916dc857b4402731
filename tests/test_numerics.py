"""The numbers that a user must be able to trust, for all three conditionings."""

from __future__ import annotations

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from sinuflow import InversionError, SinusoidalFlow
from tests.builders import CONDITIONINGS, batch, jacobian, trained_flow

DOUBLE = torch.float64
every_conditioning = pytest.mark.parametrize("conditioning", CONDITIONINGS)
WIDE = {"strength": 0.999, "frequency": (1e-3, 10.0)}
POWER = {"strength": 0.979, "frequency": (0.01, 4.3)}


@every_conditioning
@settings(max_examples=25)
@given(
    features=st.integers(1, 16),
    context=st.sampled_from([0, 3]),
    seed=st.integers(0, 10**6),
    residual=st.booleans(),
    ranges=st.sampled_from([WIDE, POWER]),
)
def test_log_prob_against_the_full_jacobian(conditioning, features, context, seed, residual, ranges):
    flow = trained_flow(features, context, conditioning, seed, ranges=ranges, residual=residual)
    x, c = batch(features, context, rows=2, seed=seed)
    got = flow(c).log_prob(x)
    for i in range(2):
        jac = jacobian(lambda t, i=i: flow.bijection(t, None if c is None else c[i])[0], x[i])
        z = flow.bijection(x[i], None if c is None else c[i])[0]
        normal = torch.distributions.Normal(torch.zeros((), dtype=DOUBLE), 1.0).log_prob(z).sum()
        want = normal + torch.linalg.slogdet(jac)[1]
        assert abs(got[i] - want) <= 1e-10 * (1 + abs(want))


def fit_a_little(flow: SinusoidalFlow, x: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -flow().log_prob(x).mean()
        loss.backward()
        optimizer.step()


def integral(flow: SinusoidalFlow, features: int, half_width: float, points: int) -> float:
    """By the trapezoidal rule, which converges fast for densities that vanish at the ends."""
    axis = torch.linspace(-half_width, half_width, points, dtype=DOUBLE)
    grid = torch.cartesian_prod(*[axis] * features).reshape(-1, features)
    with torch.no_grad():
        total = sum(float(flow().log_prob(part).exp().sum()) for part in grid.split(2**15))
    return total * float(axis[1] - axis[0]) ** features


@every_conditioning
@pytest.mark.parametrize(("features", "points", "tolerance"), [(1, 100_001, 1e-6), (2, 701, 1e-4)])
def test_a_density_integrates_to_one(conditioning, features, points, tolerance):
    """Before training, after training, and with parameters drawn to look trained."""
    flow = SinusoidalFlow(features, 0, conditioning, blocks=2, hidden=(16,)).double()
    assert integral(flow, features, 12.0, points) == pytest.approx(1, abs=tolerance)
    torch.manual_seed(1)
    x = torch.randn(256, features, dtype=DOUBLE) + 2 * torch.randint(0, 2, (256, 1)) - 1
    before = float(-flow().log_prob(x).mean().detach())
    fit_a_little(flow, x, 60)
    assert float(-flow().log_prob(x).mean().detach()) < before - 0.1
    assert integral(flow, features, 15.0, points) == pytest.approx(1, abs=tolerance)
    mild = {"strength": 0.8, "frequency": (0.05, 2.0)}
    drawn = trained_flow(features, 0, conditioning, seed=2, ranges=mild, hidden=(16,), activation="tanh")
    assert integral(drawn, features, 40.0, 2 * points - 1) == pytest.approx(1, abs=tolerance)


def far_and_wide(features: int, rows: int, seed: int, top: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of every size from 0.1 to 10 ** top."""
    g = torch.Generator().manual_seed(seed)
    size = 10 ** ((top + 1) * torch.rand(rows, 1, generator=g, dtype=DOUBLE) - 1)
    return (size * (2 * torch.rand(rows, features, generator=g, dtype=DOUBLE) - 1)).to(dtype)


@every_conditioning
@settings(max_examples=40)
@given(features=st.integers(1, 12), context=st.sampled_from([0, 2]), seed=st.integers(0, 10**6), wide=st.booleans())
def test_round_trip_in_float64(conditioning, features, context, seed, wide):
    """An `InversionError` fails this test: out of a thousand draws at most one may raise, and none does."""
    flow = trained_flow(features, context, conditioning, seed, ranges=WIDE if wide else POWER, blocks=4)
    x = far_and_wide(features, 32, seed, 6, DOUBLE)
    _, c = batch(features, context, rows=32, seed=seed)
    with torch.no_grad():
        z, _ = flow.bijection(x, c)
        inverse = flow.bijection.inverse(z, c)[0]
        residual = (flow.bijection(inverse, c)[0] - z).abs().amax(-1)
    assert (residual <= 1e-12 * (1 + z.abs().amax(-1))).all()
    for i in (0, 1):
        jac = jacobian(lambda t, i=i: flow.bijection(t, None if c is None else c[i])[0], x[i])
        # How an error of relative size eps in z shows in x. cond(J) tells it when J and its inverse are
        # of the same size; a flow that squeezes (cond(J) is always 1 in one dimension) needs ‖J⁻¹‖.
        size_x, size_z = (1 + float(t[i].abs().max()) for t in (x, z))
        squeeze = float(torch.linalg.matrix_norm(torch.linalg.inv(jac), 2)) * size_z / size_x
        bound = 100 * 2.0**-52 * max(float(torch.linalg.cond(jac)), squeeze) * size_x
        assert float((inverse[i] - x[i]).abs().max()) <= bound


@every_conditioning
@settings(max_examples=25)
@given(features=st.integers(1, 12), seed=st.integers(0, 10**6), wide=st.booleans())
def test_round_trip_in_float32(conditioning, features, seed, wide):
    flow = trained_flow(features, 0, conditioning, seed, torch.float32, WIDE if wide else POWER, blocks=4)
    x = far_and_wide(features, 32, seed, 4, torch.float32)
    with torch.no_grad():
        z, _ = flow.bijection(x)
        inverse, _ = flow.bijection.inverse(z)
        residual = (flow.bijection(inverse)[0] - z).abs().amax(-1)
    assert (residual <= 1e-4 * (1 + z.abs().amax(-1))).all()


@every_conditioning
def test_random_flows_are_inverted(conditioning):
    """Out of a thousand at most one inverse may raise."""
    failures, cases = 0, int(os.environ.get("SINUFLOW_CASES", 300))
    for seed in range(cases):
        dtype = DOUBLE if seed % 2 else torch.float32
        flow = trained_flow(1 + seed % 5, 0, conditioning, seed, dtype, WIDE if seed % 3 else POWER, hidden=(8,))
        z = far_and_wide(1 + seed % 5, 4, seed, 6 if seed % 2 else 4, dtype)
        try:
            flow.invert(z)
        except InversionError:
            failures += 1
    assert failures <= cases // 1000


@every_conditioning
@settings(max_examples=10)
@given(features=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_both_solvers_agree_wherever_algorithm_1_converges(conditioning, features, seed):
    flow = trained_flow(features, 0, conditioning, seed, ranges=WIDE)
    z, _ = batch(features, rows=32, seed=seed)
    with torch.no_grad():
        certified = flow.invert(z)
        algorithm = flow.invert(z, solver="fixed_point", max_iterations=300, on_failure="return")
    there = algorithm.converged
    assert there.any()
    # Algorithm 1 stops at a residual of 1e-12 in each layer; the slope may be as small as 1e-3.
    torch.testing.assert_close(algorithm.x[there], certified.x[there], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(algorithm.ladj[there], certified.ladj[there], rtol=1e-5, atol=1e-5)
    assert (algorithm.iterations <= 300).all()
    assert certified.iterations.max() < 60


@every_conditioning
@pytest.mark.parametrize("context", [0, 2])
def test_gradcheck_of_log_prob_and_rsample(conditioning, context):
    options = {"blocks": 2, "scales": 2, "waves": 2, "hidden": (6, 6), "activation": "tanh"}
    flow = trained_flow(3, context, conditioning, ranges={"strength": 0.9, "frequency": (0.1, 2.0)}, **options)
    x, c = batch(3, context, rows=2)
    extra = () if c is None else (c.requires_grad_(),)
    parameters = tuple(flow.parameters())

    def score(x, *rest):
        return flow(rest[0] if extra else None).log_prob(x)

    def draw(*rest):
        generator = torch.Generator().manual_seed(5)
        shape = (2,) if not extra else ()
        return flow(rest[0] if extra else None).rsample_and_log_prob(shape, generator=generator)

    assert gradcheck(score, (x.requires_grad_(), *extra, *parameters), fast_mode=True)
    assert gradcheck(draw, (*extra, *parameters), fast_mode=True)


@every_conditioning
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_gradients_stay_finite_at_the_edges(conditioning, dtype):
    flow = trained_flow(3, 0, conditioning, dtype=dtype)
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if name.endswith("frequency"):
                parameter.fill_(-300.0)
            elif name.endswith("strength"):
                parameter.fill_(60.0)
            elif name.endswith("head.bias") and conditioning == "full":
                bias = parameter.view(3, -1)
                bias[:, 2:10], bias[:, -2:] = -300.0, 60.0
    x = torch.tensor([[1e6, -1e6, 1e6], [0.0, 1e-6, -1.0]], dtype=dtype, requires_grad=True)
    flow().log_prob(x).sum().backward()
    for grad in (x.grad, *(p.grad for p in flow.parameters())):
        assert grad.isfinite().all()


@every_conditioning
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_log_prob_is_repeatable_to_the_bit(conditioning, dtype):
    flow = trained_flow(5, 0, conditioning, dtype=dtype, blocks=4, hidden=(64, 64))
    x, _ = batch(5, rows=100, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(flow().log_prob(x), flow().log_prob(x))


@every_conditioning
def test_a_rows_density_does_not_depend_on_its_neighbours(conditioning):
    flow = trained_flow(6, 0, conditioning, dtype=torch.float32, blocks=4, hidden=(64, 64))
    x, _ = batch(6, rows=300, dtype=torch.float32)
    order = torch.randperm(300)
    with torch.no_grad():
        whole = flow().log_prob(x)
        tolerance = 1e-6 * (1 + whole.abs())
        assert ((flow().log_prob(x[order]) - whole[order]).abs() <= tolerance[order]).all()
        pieces = torch.cat([flow().log_prob(part) for part in x.split(7)])
        assert ((pieces - whole).abs() <= tolerance).all()
        single = torch.stack([flow().log_prob(row) for row in x[:20]])
        assert ((single - whole[:20]).abs() <= tolerance[:20]).all()


@every_conditioning
def test_second_derivatives(conditioning):
    """The Hessian of log p, against finite differences of its gradient."""
    flow = trained_flow(3, 0, conditioning, activation="tanh", ranges={"strength": 0.9, "frequency": (0.1, 2.0)})
    x = batch(3, rows=1)[0][0]

    def score(t):
        return flow().log_prob(t)

    hessian = torch.autograd.functional.hessian(score, x)
    step = 1e-5
    for i in range(3):
        shift = torch.zeros(3, dtype=DOUBLE)
        shift[i] = step
        up = torch.autograd.functional.jacobian(score, x + shift)
        down = torch.autograd.functional.jacobian(score, x - shift)
        torch.testing.assert_close(hessian[i], (up - down) / (2 * step), rtol=1e-4, atol=1e-5)


@every_conditioning
def test_function_transforms_and_forward_mode(conditioning):
    flow = trained_flow(3, 0, conditioning)
    x, _ = batch(3, rows=4)

    def score(t):
        return flow(validate_args=False).log_prob(t)

    want = torch.autograd.functional.jacobian(lambda t: score(t).sum(), x)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(score))(x), want)
    with torch.autograd.forward_ad.dual_level():
        tangent = torch.randn_like(x)
        out = score(torch.autograd.forward_ad.make_dual(x, tangent))
        _, directional = torch.autograd.forward_ad.unpack_dual(out)
    torch.testing.assert_close(directional, (want * tangent).sum(-1))


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_samples_follow_the_density(conditioning):
    """The mean of log p over samples is minus the entropy, which quadrature gives in one dimension."""
    flow = trained_flow(1, 0, conditioning, seed=4, ranges={"strength": 0.9, "frequency": (0.1, 2.0)})
    axis = torch.linspace(-60, 60, 400_001, dtype=DOUBLE).unsqueeze(-1)
    with torch.no_grad():
        log_p = flow().log_prob(axis)
        width = float(axis[1] - axis[0])
        entropy = float(-(log_p.exp() * log_p).sum() * width)
        x, log_q = flow().rsample_and_log_prob((40_000,), generator=torch.Generator().manual_seed(0))
        spread = float(log_q.std()) / math.sqrt(40_000)
        assert float(-log_q.mean()) == pytest.approx(entropy, abs=5 * spread)
        torch.testing.assert_close(flow().log_prob(x), log_q, rtol=1e-9, atol=1e-9)
        cdf = torch.cumsum(log_p.exp(), 0) * width
        ranks = cdf[torch.searchsorted(axis[:, 0], x[:, 0]).clamp(max=len(cdf) - 1)].sort().values
        steps = torch.arange(1, 40_001, dtype=DOUBLE) / 40_000
        assert float((ranks - steps).abs().max()) < 1.63 / math.sqrt(40_000)  # Kolmogorov-Smirnov at 1 %
