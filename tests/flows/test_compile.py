"""torch.compile(fullgraph=True): no graph breaks, and the same results."""

from __future__ import annotations

import pytest
import torch

from sinuflow import SinusoidalFlow
from tests.builders import CONDITIONINGS, batch, trained_flow
from tests.untraced import untraced

every_conditioning = pytest.mark.parametrize("conditioning", CONDITIONINGS)


def compiled(function, backend="aot_eager"):
    """The eager backend traces the whole graph like the default one, without minutes of C++."""
    return untraced()(torch.compile(function, fullgraph=True, backend=backend))


def small(conditioning, context=0):
    return trained_flow(3, context, conditioning, blocks=1, scales=2, waves=2, hidden=(8,))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@every_conditioning
def test_log_prob_and_its_gradient(conditioning):
    flow = small(conditioning, context=2)
    x, c = batch(3, 2)
    got = compiled(lambda c, x: flow(c).log_prob(x))(c, x)
    want = flow(c).log_prob(x)
    torch.testing.assert_close(got, want)
    parameters = list(flow.parameters())
    for g, w in zip(
        torch.autograd.grad(got.sum(), parameters), torch.autograd.grad(want.sum(), parameters), strict=True
    ):
        torch.testing.assert_close(g, w)


def test_log_prob_with_the_default_backend():
    flow = small("shift")
    x, _ = batch(3)
    with torch.no_grad():
        inverse = compiled(lambda x: flow().log_prob(x), backend="inductor")(x)
        torch.testing.assert_close(inverse, flow().log_prob(x))


@every_conditioning
@pytest.mark.parametrize("solver", ["certified", "fixed_point"])
def test_invert(conditioning, solver):
    flow = small(conditioning)
    z, _ = batch(3)

    def invert(z):
        inverse = flow.invert(z, solver=solver, on_failure="return")
        return inverse.x, inverse.ladj, inverse.iterations, inverse.residual, inverse.converged

    got = compiled(invert)(z)
    for g, w in zip(got, invert(z), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("solver", ["certified", "fixed_point"])
def test_invert_a_fresh_flow(solver):
    """Everything has converged at once: an operator must not hand its input back as its output."""
    flow = SinusoidalFlow(2, conditioning="none", blocks=2)

    def invert(z):
        return flow.invert(z, solver=solver, on_failure="return").x

    z = torch.randn(5, 2)
    torch.testing.assert_close(compiled(invert)(z), z)


@every_conditioning
def test_sampling_and_its_gradient(conditioning):
    flow = small(conditioning, context=2)
    c = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def draw(c):
        return flow(c).rsample_and_log_prob((3,))

    torch.manual_seed(0)
    x, log_p = compiled(draw)(c)
    assert x.shape == (3, 4, 3)
    torch.testing.assert_close(flow(c).log_prob(x), log_p, rtol=1e-6, atol=1e-6)
    grads = torch.autograd.grad(x.sum() + log_p.sum(), [c, *flow.parameters()])
    torch.manual_seed(0)
    x, log_p = draw(c)
    wanted = torch.autograd.grad(x.sum() + log_p.sum(), [c, *flow.parameters()])
    for g, w in zip(grads, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-9)


def test_a_compiled_inverse_is_nan_where_it_fails():
    flow = small("shift")
    z, _ = batch(3)
    z[1, 1] = torch.nan
    x, _ = compiled(flow.bijection.inverse)(z)
    assert x[1].isnan().all()
    assert x[[0, 2, 3, 4]].isfinite().all()


def test_the_operators_are_well_formed():
    """PyTorch's own checks: schema, fake tensors, autograd registration."""
    from sinuflow.ops.scale_stack import STACK
    from sinuflow.solvers.implicit import inverse_backward_op, inverse_op

    upper, scale, _ = small("shift", context=2).bijection.bijections[0]
    z = torch.randn(3, 5, dtype=torch.float64)
    c = torch.randn(2, 5, dtype=torch.float64)
    waves = [t.detach() for t in scale.constrained(c)]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    rest = ("certified", 1e-12, 1e-12, 200)
    inputs = [*(p.detach() for p in upper.parameters()), c]
    for problem, tensors in [(STACK, waves), (upper, inputs)]:
        torch.library.opcheck(inverse_op, (z, tensors, problem.key, *rest), test_utils=checks)
        torch.library.opcheck(inverse_backward_op, (z, tensors, z + 1, z[0] + 1, problem.key), test_utils=checks)
