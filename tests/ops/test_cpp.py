"""The C++ kernels against the reference in float64, and the fallback without a compiler."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import sinuflow
from sinuflow.ops import conditional_waves as reference_conditional
from sinuflow.ops import constrain as reference_constrain
from sinuflow.ops import scale_stack as reference_stack
from sinuflow.ops.backends.cpp import conditional_waves, scale_stack
from sinuflow.ops.conditional_waves import Shape
from sinuflow.ops.scale_stack import invert_stack
from sinuflow.ops.select import cpp_backend, wave_kernels
from sinuflow.ops.waves import Waves
from sinuflow.solvers import SolverOptions
from sinuflow.transformers import ConditionalWaves
from tests.processes import python, unmeasured

pytestmark = pytest.mark.skipif(not cpp_backend().available, reason=cpp_backend().reason)

DOUBLE = torch.float64
shapes = {
    "scales": st.integers(1, 4),
    "features": st.integers(1, 9),
    "waves": st.integers(1, 6),
    "rows": st.sampled_from([0, 1, 7, 64, 70, 300]),
    "seed": st.integers(0, 10**6),
    "dtype": st.sampled_from([torch.float32, DOUBLE]),
}
#: The error of float64 kernels in units of that of float32 kernels.
SMALLER = {torch.float32: 1.0, DOUBLE: 1e-8}
some = settings(max_examples=40)


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def draw_waves(scales, features, waves, seed, rows=1, dtype=torch.float32):
    parameters = [2 * randn(scales, features, waves, rows, seed=seed + i, dtype=dtype) for i in range(3)]
    parameters += [(2 - i) * randn(scales, features, rows, seed=seed + 3 + i, dtype=dtype) for i in range(2)]
    return reference_constrain.constrain(*parameters)


def double(waves):
    return [t.double() for t in waves]


def close(ours, exact, tolerance):
    assert ours.shape == exact.shape
    scale = 1 + (exact.abs().max().item() if exact.numel() else 0)
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance * scale)


@some
@given(**shapes, shared=st.booleans())
def test_the_stack_and_its_gradients(scales, features, waves, rows, seed, dtype, shared):
    x = 3 * randn(features, rows, seed=seed, dtype=dtype)
    waves = draw_waves(scales, features, waves, seed, 1 if shared else rows, dtype)
    leaves = [t.requires_grad_() for t in double((x, *waves))]
    expected = reference_stack.reference(*leaves)
    for ours, exact, tolerance in zip(scale_stack.forward(x, *waves), expected, (1e-5, 1e-4), strict=True):
        close(ours, exact.detach(), tolerance * SMALLER[dtype])
    grads = randn(features, rows, seed=seed + 1, dtype=dtype), randn(rows, seed=seed + 2, dtype=dtype)
    by_autograd = torch.autograd.grad(expected, leaves, double(grads))
    for ours, exact in zip(scale_stack.backward(x, *waves, *grads), by_autograd, strict=True):
        close(ours, exact, 1e-3 * SMALLER[dtype])


def rounding_of(found, exact):
    """How much larger the error is than that of rounding the exact waves once, both as root mean squares."""
    return float((found.double() - exact).norm() / (exact.float().double() - exact).norm())


def test_a_stack_is_rounded_once():
    """Far from zero, where sums are rounded coarsely, eight transformers lose hardly more than one rounding does."""
    x, waves = 20 + randn(6, 500), draw_waves(8, 6, 4, seed=0)
    waves = waves._replace(cosine=0.2 * waves.cosine, sine=0.2 * waves.sine)
    exact = [t.double() for t in waves]
    z, _ = scale_stack.forward(x, *waves)
    wanted, _ = reference_stack.reference(x.double(), *exact)
    assert rounding_of(z, wanted) < 1.3
    back, *_ = scale_stack.inverse(z, *waves, 200)
    options = SolverOptions()
    assert rounding_of(back, invert_stack(z.double(), Waves(*exact), options).x) < 1.3


def test_conditional_waves_are_rounded_once():
    shape = Shape(8, 4)
    x, parameters = 20 + randn(6, 500), randn(6, shape.parameters, 500, seed=1)
    parameters[:, :2] = 0  # no affine map
    parameters[:, -8:] *= 0.2  # weak waves
    z, _ = conditional_waves.forward(x, parameters, shape)
    assert rounding_of(z, reference_conditional.reference(x.double(), parameters.double(), shape)[0]) < 2
    back = conditional_waves.inverse(z, parameters, shape, 200)[0]
    exact = ConditionalWaves(*shape).inverse(z.double(), parameters.double(), SolverOptions()).x
    assert rounding_of(back, exact) < 2


@some
@given(**shapes)
def test_conditional_waves_and_their_gradients(scales, features, waves, rows, seed, dtype):
    shape = Shape(scales, waves)
    x = 3 * randn(features, rows, seed=seed, dtype=dtype)
    parameters = 1.5 * randn(features, shape.parameters, rows, seed=seed + 1, dtype=dtype)
    leaves = [t.requires_grad_() for t in double((x, parameters))]
    expected = reference_conditional.reference(*leaves, shape)
    for ours, theirs in zip(conditional_waves.forward(x, parameters, shape), expected, strict=True):
        close(ours, theirs.detach(), 1e-4 * SMALLER[dtype])
    grads = randn(features, rows, seed=seed + 2, dtype=dtype), randn(rows, seed=seed + 3, dtype=dtype)
    by_autograd = torch.autograd.grad(expected, leaves, double(grads))
    for ours, theirs in zip(conditional_waves.backward(x, parameters, *grads, shape), by_autograd, strict=True):
        close(ours, theirs, 1e-3 * SMALLER[dtype])


@some
@given(**shapes, shared=st.booleans())
def test_inverses_are_certified(scales, features, waves, rows, seed, dtype, shared):
    shape, small = Shape(scales, waves), SMALLER[dtype]
    x = 3 * randn(features, rows, seed=seed, dtype=dtype)
    waves = draw_waves(scales, features, waves, seed, 1 if shared else rows, dtype)
    z, ladj = scale_stack.forward(x, *waves)
    found, inverse_ladj, iterations, residual, converged = scale_stack.inverse(z, *waves, 200)
    assert bool(converged.all())
    close(scale_stack.forward(found, *waves)[0], z.double(), 2e-5 * small)
    close(inverse_ladj, -ladj.double(), 1e-2 * small)
    assert not rows or (int(iterations.max()) < 60 and float(residual.max()) < 1e-4 * small)
    parameters = 1.5 * randn(features, shape.parameters, rows, seed=seed + 1, dtype=dtype)
    z, ladj = conditional_waves.forward(x, parameters, shape)
    found, slope, _, _, converged = conditional_waves.inverse(z, parameters, shape, 200)
    assert bool(converged.all())
    close(conditional_waves.forward(found, parameters, shape)[0], z.double(), 1e-4 * small)
    close(slope.log().sum(0), ladj.double(), 1e-2 * small)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_converged_rows_take_a_last_step(seed):
    waves, z = draw_waves(1, 5, 4, seed), 3 * randn(5, 2000, seed=seed)
    x = scale_stack.inverse(z, *waves, 200)[0]
    left = (reference_stack.reference(x.double(), *double(waves))[0] - z).abs()
    good_enough = 8 * torch.finfo(torch.float32).eps * torch.maximum(x.abs(), z.abs())
    assert (left <= 0.5 * good_enough).all()


def test_a_row_is_inverted_the_same_alone_and_among_others():
    waves, z = draw_waves(3, 4, 4, 0), 3 * randn(4, 100)
    together = scale_stack.inverse(z, *waves, 200)
    alone = [scale_stack.inverse(z[:, i : i + 1].contiguous(), *waves, 200) for i in range(100)]
    for whole, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert whole.equal(torch.cat(parts, -1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_cannot_be_inverted_has_not_converged(bad):
    waves = draw_waves(2, 3, 4, 0)
    z = randn(3, 100)
    z[1, 70] = bad
    assert scale_stack.inverse(z, *waves, 200)[-1].tolist() == [n != 70 for n in range(100)]
    assert not bool(scale_stack.inverse(randn(3, 100), *waves, 1)[-1].any())


@pytest.mark.parametrize("size", [30.0, 300.0])
def test_extreme_parameters_give_finite_results(size):
    """Saturated tanh, a softmax with one winner, frequencies of nearly zero and of hundreds."""
    shape = Shape(2, 4)
    x, parameters = 3 * randn(4, 200), size * randn(4, shape.parameters, 200, seed=1)
    value, ladj = conditional_waves.forward(x, parameters, shape)
    expected = reference_conditional.reference(x.double(), parameters.double(), shape)
    assert bool(value.isfinite().all())
    assert bool(ladj.isfinite().all())
    close(value, expected[0], 1e-4)
    grads = conditional_waves.backward(x, parameters, torch.ones_like(x), torch.ones(200), shape)
    assert all(bool(g.isfinite().all()) for g in grads)
    assert bool(conditional_waves.inverse(value, parameters, shape, 200)[-1].all())


def test_far_away_the_map_stays_monotone_and_finite():
    waves = draw_waves(4, 2, 4, 1)
    x = torch.tensor([1e6, 1e9, 1e20, 1e35, -1e30]).expand(2, -1).contiguous()
    value, ladj = scale_stack.forward(x, *waves)
    assert bool(value.isfinite().all())
    assert bool(ladj.isfinite().all())


def test_threads_share_the_rows():
    shape = Shape(2, 4)
    x, parameters = 3 * randn(6, 30_000), randn(6, shape.parameters, 30_000, seed=1)
    waves = draw_waves(4, 6, 4, 0)
    alone = conditional_waves.forward(x, parameters, shape), scale_stack.inverse(x, *waves, 200)
    torch.set_num_threads(3)
    together = conditional_waves.forward(x, parameters, shape), scale_stack.inverse(x, *waves, 200)
    for a, b in zip(alone, together, strict=True):
        assert all(t.equal(u) for t, u in zip(a, b, strict=True))


def test_kernels_take_one_dtype_and_device():
    x = torch.zeros(2, 3)
    assert wave_kernels(x, x) is wave_kernels(x.double(), x.double()) is not None
    assert wave_kernels(x.double(), x, mixed=True) is None  # on a GPU only
    assert wave_kernels(x.bfloat16()) is None
    assert wave_kernels(x, x.bfloat16()) is None
    assert wave_kernels(x, x.to("meta")) is None


@given(exponent=st.floats(-320, 0.5), seed=st.integers(0, 10**6))
def test_elementary_functions_in_float64(exponent, seed):
    """One transformer is softplus, exp, tanh, log, sin and cos of its parameters: those of PyTorch."""
    shape = Shape(1, 1)
    parameters = 10.0**exponent * randn(1, shape.parameters, 64, seed=seed, dtype=DOUBLE)
    x = torch.zeros(1, 64, dtype=DOUBLE)
    for ours, theirs in zip(
        conditional_waves.forward(x, parameters, shape),
        reference_conditional.reference(x, parameters, shape),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


SCRIPT = (
    "import torch, sinuflow; from sinuflow.ops.select import cpp_backend; torch.manual_seed(0);"
    "f = sinuflow.SinusoidalFlow(2, blocks=1, hidden=(8,)); print(f().sample((3,)).shape, cpp_backend().reason)"
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"SINUFLOW_KERNELS": "plain"}, "selects the reference"),
        ({"SINUFLOW_KERNELS": "reference"}, "selects the reference"),
        ({"PATH": "/nowhere", "CXX": ""}, "no C++ compiler"),
        ({"CXX": "/bin/false"}, "cannot compile"),
    ],
)
def test_without_kernels_the_reference_runs(changes, reason, tmp_path):
    environment = unmeasured(**{"SINUFLOW_CACHE": str(tmp_path), **changes})
    done = python(SCRIPT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([3, 2])")
    assert reason in done.stdout


def test_a_wave_by_hand():
    """A single wave of a = 1, b = 0, w = 1: x + α (0 - sin 2x) / 2."""
    alpha = 0.5
    one = torch.ones(1, 1, 1, 1)
    waves = Waves(one, alpha * one, 0 * one, torch.zeros(1, 1, 1))
    x = torch.linspace(-3, 3, 101).unsqueeze(0)
    value, ladj = scale_stack.forward(x, *waves)
    torch.testing.assert_close(value, x - alpha * torch.sin(2 * x) / 2)
    torch.testing.assert_close(ladj, torch.log(1 - alpha * torch.cos(2 * x[0])))


def test_tracing_records_the_reference():
    flow = sinuflow.SinusoidalFlow(2, conditioning="full", blocks=2, hidden=(8, 8))
    x = torch.randn(7, 2)
    expected = flow().log_prob(x).detach()

    def score(x):
        return flow(validate_args=False).log_prob(x)

    with torch.no_grad():
        torch.testing.assert_close(make_fx(score)(x)(x), expected)


def test_autocast():
    flow = sinuflow.SinusoidalFlow(2, conditioning="full", blocks=2, hidden=(8, 8))
    x = torch.randn(7, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rough = flow(validate_args=False).log_prob(x)
    torch.testing.assert_close(rough.float(), flow().log_prob(x).detach(), rtol=0.1, atol=0.3)
