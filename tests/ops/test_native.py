"""The C++ kernels for CPUs against float64, and what happens where they cannot be had."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import sinuflow
from sinuflow.bijections.transformers import ConditionalWaves
from sinuflow.ops import conditional_waves as plain_conditional
from sinuflow.ops import constrain as plain_constrain
from sinuflow.ops import scale_stack as plain_stack
from sinuflow.ops.backends.cpp import conditional_waves, scale_stack
from sinuflow.ops.conditional_waves import Shape
from sinuflow.ops.select import cpp_backend, wave_kernels
from sinuflow.ops.stack_inverse import invert_stack
from sinuflow.ops.waves import Waves
from sinuflow.solvers import SolverOptions
from tests.processes import python, unmeasured

pytestmark = pytest.mark.skipif(not cpp_backend().available, reason=cpp_backend().reason)

DOUBLE = torch.float64
shapes = {
    "scales": st.integers(1, 4),
    "features": st.integers(1, 9),
    "waves": st.integers(1, 6),
    "rows": st.sampled_from([0, 1, 7, 64, 70, 300]),
    "seed": st.integers(0, 10**6),
}
some = settings(max_examples=40)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shared_waves(scales, features, waves, seed):
    free = [2 * randn(scales, features, waves, 1, seed=seed + i) for i in range(3)]
    free += [2 * randn(scales, features, 1, seed=seed + 3), randn(scales, features, 1, seed=seed + 4)]
    return plain_constrain.constrain(*free)


def double(numbers):
    return [t.double() for t in numbers]


def close(ours, exact, tolerance):
    assert ours.shape == exact.shape
    scale = 1 + (exact.abs().max().item() if exact.numel() else 0)
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance * scale)


@some
@given(**shapes)
def test_the_stack_and_its_gradients(scales, features, waves, rows, seed):
    x, numbers = 3 * randn(features, rows, seed=seed), shared_waves(scales, features, waves, seed)
    value, ladj, inputs = scale_stack.forward(x, numbers, keep=True)
    leaves = [t.requires_grad_() for t in double((x, *numbers))]
    expected = plain_stack.reference(*leaves)
    close(value, expected[0].detach(), 1e-5)
    close(ladj, expected[1].detach(), 1e-4)
    grads = randn(features, rows, seed=seed + 1), randn(rows, seed=seed + 2)
    by_autograd = torch.autograd.grad(expected, leaves, double(grads))
    grad_x, of_waves = scale_stack.backward(inputs, numbers, *grads)
    for ours, theirs in zip((grad_x, *of_waves), by_autograd, strict=True):
        close(ours, theirs, 1e-3)


def rounding_of(found, exact):
    """How much larger the error is than that of rounding the exact numbers once, both as root mean squares."""
    return float((found.double() - exact).norm() / (exact.float().double() - exact).norm())


def test_a_stack_is_rounded_once():
    """Far from zero, where sums are rounded coarsely, eight transformers lose hardly more than one rounding does."""
    x, numbers = 20 + randn(6, 500), shared_waves(8, 6, 4, seed=0)
    numbers = numbers._replace(cosine=0.2 * numbers.cosine, sine=0.2 * numbers.sine)
    exact = [t.double() for t in numbers]
    z, _, _ = scale_stack.forward(x, numbers, keep=False)
    wanted, _ = plain_stack.reference(x.double(), *exact)
    assert rounding_of(z, wanted) < 1.3
    back, *_ = scale_stack.inverse(z, numbers, 200)
    options = SolverOptions()
    assert rounding_of(back, invert_stack(z.double(), Waves(*exact), options).x) < 1.3


def test_conditional_waves_are_rounded_once():
    shape = Shape(8, 4)
    x, parameters = 20 + randn(6, 500), randn(6, shape.parameters, 500, seed=1)
    parameters[:, :2] = 0  # no affine map
    parameters[:, -8:] *= 0.2  # weak waves
    z, _ = conditional_waves.forward(x, parameters, *shape)
    assert rounding_of(z, plain_conditional.plain(x.double(), parameters.double(), shape)[0]) < 2
    back = conditional_waves.inverse(z, parameters, *shape, 200)[0]
    exact = ConditionalWaves(*shape).inverse(z.double(), parameters.double(), SolverOptions()).x
    assert rounding_of(back, exact) < 2


@some
@given(**shapes)
def test_conditional_waves_and_their_gradients(scales, features, waves, rows, seed):
    shape = Shape(scales, waves)
    x, parameters = 3 * randn(features, rows, seed=seed), 1.5 * randn(features, shape.parameters, rows, seed=seed + 1)
    leaves = [t.requires_grad_() for t in double((x, parameters))]
    expected = plain_conditional.plain(*leaves, shape)
    for ours, theirs in zip(conditional_waves.forward(x, parameters, *shape), expected, strict=True):
        close(ours, theirs.detach(), 1e-4)
    grads = randn(features, rows, seed=seed + 2), randn(rows, seed=seed + 3)
    by_autograd = torch.autograd.grad(expected, leaves, double(grads))
    for ours, theirs in zip(conditional_waves.backward(x, parameters, *shape, *grads), by_autograd, strict=True):
        close(ours, theirs, 1e-3)


@some
@given(**shapes)
def test_inverses_are_certified(scales, features, waves, rows, seed):
    x, numbers = 3 * randn(features, rows, seed=seed), shared_waves(scales, features, waves, seed)
    z, ladj, _ = scale_stack.forward(x, numbers, keep=False)
    found, inverse_ladj, iterations, residual, converged = scale_stack.inverse(z, numbers, 200)
    assert bool(converged.all())
    close(scale_stack.forward(found, numbers, keep=False)[0], z.double(), 2e-5)
    close(inverse_ladj, -ladj.double(), 1e-2)
    assert not rows or (int(iterations.max()) < 60 and float(residual.max()) < 1e-4)
    shape = Shape(scales, waves)
    parameters = 1.5 * randn(features, shape.parameters, rows, seed=seed + 1)
    z, ladj = conditional_waves.forward(x, parameters, *shape)
    found, slope, _, _, converged = conditional_waves.inverse(z, parameters, *shape, 200)
    assert bool(converged.all())
    close(conditional_waves.forward(found, parameters, *shape)[0], z.double(), 1e-4)
    close(slope.log().sum(0), ladj.double(), 1e-2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_solved_takes_a_last_step(seed):
    numbers, z = shared_waves(1, 5, 4, seed), 3 * randn(5, 2000, seed=seed)
    x = scale_stack.inverse(z, numbers, 200)[0]
    left = (plain_stack.reference(x.double(), *double(numbers))[0] - z).abs()
    good_enough = 8 * torch.finfo(torch.float32).eps * torch.maximum(x.abs(), z.abs())
    assert (left <= 0.5 * good_enough).all()


def test_a_row_is_inverted_the_same_alone_and_among_others():
    numbers, z = shared_waves(3, 4, 4, 0), 3 * randn(4, 100)
    together = scale_stack.inverse(z, numbers, 200)
    alone = [scale_stack.inverse(z[:, i : i + 1].contiguous(), numbers, 200) for i in range(100)]
    for whole, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert whole.equal(torch.cat(parts, -1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_cannot_be_inverted_is_said_row_by_row(bad):
    numbers = shared_waves(2, 3, 4, 0)
    z = randn(3, 100)
    z[1, 70] = bad
    assert scale_stack.inverse(z, numbers, 200)[-1].tolist() == [n != 70 for n in range(100)]
    assert not bool(scale_stack.inverse(randn(3, 100), numbers, 1)[-1].any())


@pytest.mark.parametrize("size", [30.0, 300.0])
def test_extreme_parameters_give_numbers(size):
    """Saturated tanh, a softmax with one winner, frequencies of nearly zero and of hundreds."""
    shape = Shape(2, 4)
    x, parameters = 3 * randn(4, 200), size * randn(4, shape.parameters, 200, seed=1)
    value, ladj = conditional_waves.forward(x, parameters, *shape)
    expected = plain_conditional.plain(x.double(), parameters.double(), shape)
    assert bool(value.isfinite().all())
    assert bool(ladj.isfinite().all())
    close(value, expected[0], 1e-4)
    grads = conditional_waves.backward(x, parameters, *shape, torch.ones_like(x), torch.ones(200))
    assert all(bool(g.isfinite().all()) for g in grads)
    assert bool(conditional_waves.inverse(value, parameters, *shape, 200)[-1].all())


def test_far_away_the_map_stays_monotone_and_finite():
    numbers = shared_waves(4, 2, 4, 1)
    x = torch.tensor([1e6, 1e9, 1e20, 1e35, -1e30]).expand(2, -1).contiguous()
    value, ladj, _ = scale_stack.forward(x, numbers, keep=False)
    assert bool(value.isfinite().all())
    assert bool(ladj.isfinite().all())


def test_threads_share_the_rows():
    shape = Shape(2, 4)
    x, parameters = 3 * randn(6, 30_000), randn(6, shape.parameters, 30_000, seed=1)
    numbers = shared_waves(4, 6, 4, 0)
    alone = conditional_waves.forward(x, parameters, *shape), scale_stack.inverse(x, numbers, 200)
    torch.set_num_threads(3)
    together = conditional_waves.forward(x, parameters, *shape), scale_stack.inverse(x, numbers, 200)
    for a, b in zip(alone, together, strict=True):
        assert all(t.equal(u) for t, u in zip(a, b, strict=True))


def test_double_precision_and_odd_sizes_are_left_to_the_plain_version():
    x = torch.zeros(2, 3)
    assert wave_kernels(4, x, x) is not None
    assert wave_kernels(4, x.double()) is None
    assert wave_kernels(65, x) is None
    assert wave_kernels(4, x, x.bfloat16()) is None
    assert wave_kernels(4, x, x.to("meta")) is None


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
def test_without_them_everything_still_works(changes, reason, tmp_path):
    environment = unmeasured(**{"SINUFLOW_CACHE": str(tmp_path), **changes})
    done = python(SCRIPT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([3, 2])")
    assert reason in done.stdout


def test_waves_are_those_of_the_definition():
    """A single wave of a = 1, b = 0, w = 1: x + α (0 - sin 2x) / 2."""
    alpha = 0.5
    one = torch.ones(1, 1, 1, 1)
    waves = Waves(one, alpha * one, 0 * one, torch.zeros(1, 1, 1))
    x = torch.linspace(-3, 3, 101).unsqueeze(0)
    value, ladj, _ = scale_stack.forward(x, waves, keep=False)
    torch.testing.assert_close(value, x - alpha * torch.sin(2 * x) / 2)
    torch.testing.assert_close(ladj, torch.log(1 - alpha * torch.cos(2 * x[0])))


def test_those_who_record_operations_see_them():
    flow = sinuflow.SinusoidalFlow(2, conditioning="full", blocks=2, hidden=(8, 8))
    x = torch.randn(7, 2)
    expected = flow().log_prob(x).detach()

    def score(x):
        return flow(validate_args=False).log_prob(x)

    with torch.no_grad():
        torch.testing.assert_close(make_fx(score)(x)(x), expected)


def test_autocast_does_not_hand_over_the_wrong_memory():
    flow = sinuflow.SinusoidalFlow(2, conditioning="full", blocks=2, hidden=(8, 8))
    x = torch.randn(7, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rough = flow(validate_args=False).log_prob(x)
    torch.testing.assert_close(rough.float(), flow().log_prob(x).detach(), rtol=0.1, atol=0.3)
