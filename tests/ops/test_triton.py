"""The Triton kernels against the reference in float64: on a GPU if there is one, else by Triton's interpreter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

import triton
import triton.language as tl

import sinuflow.ops.backends.triton
from sinuflow.ops import conditional_waves as reference_conditional
from sinuflow.ops import constrain as reference_constrain
from sinuflow.ops import scale_stack as reference_stack
from sinuflow.ops.backends.triton import arithmetic, conditional_waves, constrain, scale_stack
from sinuflow.ops.conditional_waves import Shape
from sinuflow.ops.scale_stack import STACK, invert_stack
from sinuflow.ops.waves import Waves
from sinuflow.solvers import SolverOptions
from sinuflow.transformers import ConditionalWaves
from tests.processes import unmeasured

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []

DOUBLE = torch.float64
#: Features and rows. More than 64 features are cut into tiles, and of gradients, more than 128 rows into parts.
SIZES = [(1, 0), (2, 1), (5, 7), (3, 64), (9, 70), (1, 300), (3, 140), (70, 1), (70, 9)]
shapes = {
    "scales": st.integers(1, 3),
    "size": st.sampled_from(SIZES),
    "waves": st.integers(1, 5),
    "seed": st.integers(0, 10**6),
}
# A GPU's are compiled for every shape of flow.
few = settings(max_examples=int(os.environ.get("SINUFLOW_CASES", 3 if DEVICE == "cuda" else 8)))


def randn(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype).to(DEVICE)


def draw_waves(scales, features, waves, seed, dtype=DOUBLE, rows=1):
    parameters = [2 * randn(scales, features, waves, rows, seed=seed + i) for i in range(3)]
    parameters += [(2 - i) * randn(scales, features, rows, seed=seed + 3 + i) for i in range(2)]
    return Waves(*(t.to(dtype) for t in reference_constrain.constrain(*parameters)))


def close(a, b, tolerance=1e-11):
    """Equal but for rounding, measured by the largest number."""
    assert a.shape == b.shape
    scale = 1 + (b.abs().max().item() if b.numel() else 0)
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale)


# ---------------------------------------------------------------- sines


@triton.jit
def _sines(u_at, sine_at, cosine_at, square_at, product_at, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    u = tl.load(u_at + place)
    sine, cosine = arithmetic.sin_cos(u)
    square, product = arithmetic.wave_products(u, 1.0)
    tl.store(sine_at + place, sine)
    tl.store(cosine_at + place, cosine)
    tl.store(square_at + place, square)
    tl.store(product_at + place, product)


def test_sines_in_single_precision():
    """In every quarter, and far away where multiples of π/2 are exact: there, its second part counts."""
    quarters = torch.tensor([*range(-7, 8), *(2.0**n for n in range(4, 15)), -(2.0**12)], dtype=DOUBLE)
    u = (quarters * (math.pi / 2) + torch.linspace(-0.78, 0.78, 64, dtype=DOUBLE).unsqueeze(1)).float().flatten()
    u = torch.cat([u, u[: -len(u) % 128]]).to(DEVICE)
    found = [torch.empty_like(u) for _ in range(4)]
    _sines[(len(u) // 128,)](u, *found, block=128)
    sine, cosine = u.double().sin(), u.double().cos()
    for ours, truth in zip(found, (sine, cosine, sine * sine, sine * cosine), strict=True):
        assert (ours.double() - truth).abs().max() < 1e-6


# ---------------------------------------------------------------- waves that all rows share


@few
@given(**shapes, shared=st.booleans())
@example(scales=2, size=(70, 140), waves=3, seed=0, shared=True)
@example(scales=2, size=(3, 140), waves=3, seed=0, shared=False)
def test_the_stack_matches_the_reference(scales, size, waves, seed, shared):
    features, rows = size
    x, waves = (
        3 * randn(features, rows, seed=seed),
        draw_waves(scales, features, waves, seed, rows=1 if shared else rows),
    )
    value, ladj, inputs = scale_stack.forward(x, *waves, keep=True)
    expected = reference_stack.reference(x, *waves)
    close(value, expected[0])
    close(ladj, expected[1])
    assert inputs[0].equal(x)
    grad_z, grad_ladj = randn(features, rows, seed=seed + 1), randn(rows, seed=seed + 2)
    leaves = [t.clone().requires_grad_() for t in (x, *waves)]
    by_autograd = torch.autograd.grad(reference_stack.reference(*leaves), leaves, (grad_z, grad_ladj))
    grads = scale_stack.backward(x, *waves, grad_z, grad_ladj, inputs)
    for ours, theirs in zip(grads, by_autograd, strict=True):
        close(ours, theirs)


@few
@given(**shapes, shared=st.booleans())
def test_the_inverse_of_the_stack_is_certified(scales, size, waves, seed, shared):
    features, rows = size
    x, waves = (
        3 * randn(features, rows, seed=seed),
        draw_waves(scales, features, waves, seed, rows=1 if shared else rows),
    )
    z, ladj = scale_stack.forward(x, *waves)
    found, inverse_ladj, iterations, residual, converged = scale_stack.inverse(z, *waves, 200)
    assert bool(converged.all())
    again, _ = reference_stack.reference(found, *waves)
    close(again, z, 1e-13)
    root = invert_stack(z.clone(), waves, SolverOptions())
    close(found, root.x, 1e-9)
    close(inverse_ladj, -root.slope.log().sum(0), 1e-9)
    close(inverse_ladj, -ladj, 1e-9)
    if rows:
        assert int(iterations.min()) >= 1
        assert int(iterations.max()) < 40
        assert float(residual.max()) <= 1e-13 * (1 + z.abs().max().item())


def test_gradients_of_the_inverse(monkeypatch):
    x, waves = randn(3, 9), draw_waves(2, 3, 4, 0)
    grad_x, grad_ladj = randn(3, 9, seed=1), randn(9, seed=2)
    expected = STACK.pull_back(x, waves, grad_x, grad_ladj)
    monkeypatch.setattr(reference_stack, "wave_kernels", lambda *_: sinuflow.ops.backends.triton)
    for ours, theirs in zip(STACK.pull_back(x, waves, grad_x, grad_ladj), expected, strict=True):
        close(ours, theirs, 1e-9)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's, in the interpreter
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_cannot_be_inverted_has_not_converged(bad):
    waves = draw_waves(2, 3, 4, 0)
    z = randn(3, 9)
    z[1, 4] = bad
    converged = scale_stack.inverse(z, *waves, 200)[-1]
    assert converged.tolist() == [i != 4 for i in range(9)]
    assert not bool(scale_stack.inverse(randn(3, 9), *waves, 1)[-1].any())


def test_float32_is_as_accurate_as_the_reference():
    waves = draw_waves(4, 6, 4, 0)
    x = 3 * randn(6, 256)
    exact = reference_stack.reference(x, *waves)
    single = Waves(*(t.float() for t in waves))
    value, ladj, inputs = scale_stack.forward(x.float(), *single, keep=True)
    reference = reference_stack.reference(x.float(), *single)
    for ours, theirs, truth in zip((value, ladj), reference, exact, strict=True):
        assert (ours - truth).abs().max() <= 2 * (theirs - truth).abs().max() + 1e-6

    def gradients(x, waves):
        leaves = [t.clone().requires_grad_() for t in (x, *waves)]
        return torch.autograd.grad(sum(t.sum() for t in reference_stack.reference(*leaves)), leaves)

    grads = scale_stack.backward(x.float(), *single, torch.ones_like(value), torch.ones_like(ladj), inputs)
    compared = zip(grads, gradients(x.float(), single), gradients(x, waves), strict=True)
    for ours, theirs, truth in compared:
        assert (ours - truth).abs().max() <= 3 * (theirs - truth).abs().max() + 1e-6 * truth.abs().max()


def rounding_of(found, exact):
    """How much larger the error is than that of rounding the exact waves once, both as root mean squares."""
    return float((found.double() - exact).norm() / (exact.float().double() - exact).norm())


def test_a_stack_is_rounded_once():
    """Far from zero, where sums are rounded coarsely, eight transformers lose hardly more than one rounding does."""
    x, waves = 20 + randn(6, 70, dtype=torch.float32), draw_waves(8, 6, 4, seed=0, dtype=torch.float32)
    waves = waves._replace(cosine=0.2 * waves.cosine, sine=0.2 * waves.sine)
    exact = Waves(*(t.double() for t in waves))
    z, _ = scale_stack.forward(x, *waves)
    assert rounding_of(z, reference_stack.reference(x.double(), *exact)[0]) < 1.3
    back, *_ = scale_stack.inverse(z, *waves, 200)
    assert rounding_of(back, invert_stack(z.double(), exact, SolverOptions()).x) < 1.3


def test_far_away_the_slope_stays_positive():
    """In float32 the phase of a wave is lost from about 1e7 on; the map must stay monotone and finite."""
    waves = draw_waves(4, 2, 4, 1, torch.float32)
    x = torch.tensor([1e6, 1e9, 1e20, 1e35, -1e30], device=DEVICE).expand(2, -1).contiguous()
    value, ladj = scale_stack.forward(x, *waves)
    assert bool(value.isfinite().all())
    assert bool(ladj.isfinite().all())


@few
@given(**shapes)
@example(scales=4, size=(9, 70), waves=4, seed=0)
def test_float64_rows_with_float32_waves(scales, size, waves, seed):
    """Only the log-determinant is in float32."""
    features, rows = size
    x, waves = 10 * randn(features, rows, seed=seed), draw_waves(scales, features, waves, seed, torch.float32)
    value, ladj = scale_stack.forward(x, *waves)
    exact = waves.to(DOUBLE)
    truth, true_ladj = reference_stack.reference(x, *exact)
    assert value.dtype == DOUBLE
    close(value, truth, 1e-14)
    close(ladj.double(), true_ladj, 1e-6 * scales * features)
    back, back_ladj, _, residual, converged = scale_stack.inverse(truth, *waves, 200)
    assert bool(converged.all())
    assert rows == 0 or float(residual.max()) < 1e-12
    close(back, invert_stack(truth, exact, SolverOptions()).x, 1e-12)
    close(back_ladj, -ladj, 1e-5 * scales * features)


def test_far_away_slopes_of_float64_rows_stay_positive():
    waves = draw_waves(4, 2, 4, 1, torch.float32)
    x = torch.tensor([1e9, 1e20, 1e35, -1e300, 0.0], device=DEVICE, dtype=DOUBLE).expand(2, -1).contiguous()
    assert all(bool(t.isfinite().all()) for t in scale_stack.forward(x, *waves))
    back, ladj, _, _, converged = scale_stack.inverse(x, *waves, 200)
    assert bool(back.isfinite().all())
    assert bool(ladj.isfinite().all())
    assert bool(converged.all())
    assert bool(scale_stack.forward(x * torch.nan, *waves)[0].isnan().all())


# ---------------------------------------------------------------- waves of every row's own


@few
@given(**shapes)
def test_constrain_matches_the_reference(scales, size, waves, seed):
    features, rows = size
    free = [3 * randn(scales, features, waves, rows, seed=seed + i) for i in range(3)]
    free.append(randn(scales, features, rows, seed=seed + 3))
    for ours, theirs in zip(constrain.forward(*free), reference_constrain.reference(*free), strict=True):
        close(ours, theirs, 1e-14)
    grads = [randn(scales, features, waves, rows, seed=seed + 4 + i) for i in range(3)]
    leaves = [t.clone().requires_grad_() for t in free]
    by_autograd = torch.autograd.grad(reference_constrain.reference(*leaves), leaves, grads)
    for ours, theirs in zip(constrain.backward(*free, *grads), by_autograd, strict=True):
        close(ours, theirs, 1e-13)


def conditional_case(scales, size, waves, seed):
    features, rows = size
    shape = Shape(scales, waves)
    x = 3 * randn(features, rows, seed=seed)
    return shape, x, 1.5 * randn(features, shape.parameters, rows, seed=seed + 1)


@few
@given(**shapes)
def test_conditional_waves_are_the_reference(scales, size, waves, seed):
    shape, x, parameters = conditional_case(scales, size, waves, seed)
    expected = reference_conditional.reference(x, parameters, shape)
    for ours, theirs in zip(conditional_waves.forward(x, parameters, shape), expected, strict=True):
        close(ours, theirs)
    grad_z, grad_ladj = randn(*size, seed=seed + 2), randn(size[1], seed=seed + 3)
    leaves = [t.clone().requires_grad_() for t in (x, parameters)]
    by_autograd = torch.autograd.grad(reference_conditional.reference(*leaves, shape), leaves, (grad_z, grad_ladj))
    found = conditional_waves.backward(x, parameters, grad_z, grad_ladj, shape)
    for ours, theirs in zip(found, by_autograd, strict=True):
        close(ours, theirs)


@few
@given(**shapes)
def test_the_inverse_of_conditional_waves_is_certified(scales, size, waves, seed):
    shape, x, parameters = conditional_case(scales, size, waves, seed)
    z, ladj = conditional_waves.forward(x, parameters, shape)
    found, slope, _, _, converged = conditional_waves.inverse(z, parameters, shape, 200)
    assert bool(converged.all())
    close(reference_conditional.reference(found, parameters, shape)[0], z, 1e-12)
    close(slope.log().sum(0), ladj, 1e-9)
    close(found, ConditionalWaves(*shape).inverse(z.clone(), parameters, SolverOptions()).x, 1e-9)


def compiled_by(name: str) -> list[str]:
    """The kernels that a script beside this file could compile."""
    script = Path(__file__).parent / name
    environment = {name: value for name, value in unmeasured().items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_every_kernel_compiles_for_a_gpu():
    """The interpreter takes much that the compiler does not."""
    assert (
        len(compiled_by("compile_triton.py")) == 2 * 13 + 2 + 8
    )  # two of scale_stack are mixed, and all of its also for waves per row
