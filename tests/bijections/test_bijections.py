from __future__ import annotations

import copy
import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck

from sinuflow import ArgumentError, InversionError, SinuflowError
from sinuflow.bijections import (
    Autoregressive,
    AutoregressiveWaves,
    Chain,
    ElementwiseAffine,
    LDUBlock,
    Linear,
    LowerShift,
    SinusoidalLayer,
    UpperShift,
)
from sinuflow.bijections.base import raise_unless_converged
from sinuflow.conditioners import MADE, PixelCNN
from sinuflow.ops.waves import ALPHA_MAX
from sinuflow.solvers import Inversion, SolverOptions, Step
from sinuflow.testing import check_bijection
from sinuflow.transformers import Affine, Shift
from tests.builders import BIJECTIONS, batch, check_round_trip, jacobian, trained

DOUBLE = torch.float64
every_bijection = pytest.mark.parametrize("name", BIJECTIONS)
with_and_without_context = pytest.mark.parametrize("context", [0, 2])
FIXED_POINT = SolverOptions("fixed_point", max_iterations=20000)


def build(name, features, context, seed=0, **options):
    bijection = trained(BIJECTIONS[name](features, context), seed, **options)
    return bijection, bijection.context


@every_bijection
@with_and_without_context
@settings(max_examples=12)
@given(features=st.integers(1, 16), seed=st.integers(0, 1000))
def test_log_determinant_is_that_of_the_jacobian(name, context, features, seed):
    bijection, context = build(name, features, context, seed, strength=0.999, frequency=(1e-3, 10.0))
    x, c = batch(features, context, rows=2, seed=seed)
    z, ladj = bijection(x, c)
    _, ladj_back = bijection.inverse(z, c)
    for i in range(2):
        given_c = None if c is None else c[i]
        forward = torch.linalg.slogdet(jacobian(lambda t, g=given_c: bijection(t, g)[0], x[i]))[1]
        assert abs(ladj[i] - forward) <= 1e-10 * (1 + abs(forward))
        inverse = torch.linalg.slogdet(jacobian(lambda t, g=given_c: bijection.inverse(t, g)[0], z[i].detach()))[1]
        assert abs(ladj_back[i] - inverse) <= 1e-7 * (1 + abs(inverse))


@every_bijection
@with_and_without_context
@settings(max_examples=12)
@given(features=st.integers(1, 16), seed=st.integers(0, 1000))
def test_round_trip(name, context, features, seed):
    bijection, context = build(name, features, context, seed)
    x, c = batch(features, context, seed=seed)
    check_round_trip(bijection, x, c, 1e-5)


@every_bijection
@with_and_without_context
def test_algorithm_1_agrees_with_the_certified_solver(name, context):
    bijection, context = build(name, 5, context, strength=0.9)
    x, c = batch(5, context)
    rows, given_c, _ = bijection.feature_major(bijection(x, c)[0], c, "z")
    certificate = bijection.certified(rows, given_c, SolverOptions())
    certified, ladj = certificate.x, certificate.ladj
    other_certificate = bijection.certified(rows, given_c, FIXED_POINT)
    other, other_ladj = other_certificate.x, other_certificate.ladj
    assert certificate.converged.all()
    assert other_certificate.converged.all()
    torch.testing.assert_close(other, certified, rtol=0, atol=1e-8)
    torch.testing.assert_close(other_ladj, ladj, rtol=0, atol=1e-6)


@every_bijection
@with_and_without_context
def test_gradients_both_ways(name, context):
    bijection, context = build(name, 3, context)
    for layer in bijection.modules():  # a rectifier's kinks are no place for finite differences
        if hasattr(layer, "activation"):
            layer.activation = "tanh"
        if hasattr(layer, "structure"):
            layer.structure = layer.structure.replace('"relu"', '"tanh"')
    x, c = batch(3, context, rows=2)
    z = bijection(x, c)[0].detach()
    parameters = tuple(bijection.parameters())
    extra = () if c is None else (c.requires_grad_(),)

    def forward(x, *rest):
        return bijection(x, rest[0] if extra else None)

    def inverse(z, *rest):
        return bijection.inverse(z, rest[0] if extra else None)

    assert gradcheck(forward, (x.requires_grad_(), *extra, *parameters), fast_mode=True)
    assert gradcheck(inverse, (z.requires_grad_(), *extra, *parameters), fast_mode=True, atol=1e-4)


@every_bijection
@with_and_without_context
def test_any_batch_dimensions(name, context):
    bijection, context = build(name, 4, context)
    x, c = batch(4, context, rows=6)
    z, ladj = bijection(x, c)
    shaped = None if c is None else c.view(2, 3, context)
    z2, ladj2 = bijection(x.view(2, 3, 4), shaped)
    torch.testing.assert_close(z2.reshape(6, 4), z)
    torch.testing.assert_close(ladj2.reshape(6), ladj)
    z1, ladj1 = bijection(x[0], None if c is None else c[0])
    assert z1.shape == (4,)
    assert ladj1.shape == ()
    torch.testing.assert_close(z1, z[0])
    torch.testing.assert_close(bijection.inverse(z2, shaped)[0], x.view(2, 3, 4), rtol=1e-7, atol=1e-8)
    empty = None if c is None else c[:0]
    z0, ladj0 = bijection(x[:0], empty)
    assert z0.shape == (0, 4)
    assert ladj0.shape == (0,)
    assert bijection.inverse(z0, empty)[0].shape == (0, 4)
    if c is not None:  # one row against many contexts, and the other way round
        torch.testing.assert_close(bijection(x[0], c)[0], bijection(x[:1].expand(6, 4), c)[0])
        torch.testing.assert_close(bijection(x, c[0])[1], bijection(x, c[:1].expand(6, context))[1])


@every_bijection
def test_every_tensor_is_a_parameter_or_a_buffer(name):
    bijection, _ = build(name, 4, 0)
    single = copy.deepcopy(bijection).float()
    tensors = {**dict(single.named_parameters()), **dict(single.named_buffers())}
    assert all(t.dtype == torch.float32 for t in tensors.values())
    x, _ = batch(4, dtype=torch.float32)
    z, _ = single(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.double(), bijection(x.double())[0], rtol=1e-3, atol=1e-3)
    for module in single.modules():
        loose = [k for k, v in vars(module).items() if isinstance(v, torch.Tensor)]
        assert not loose


@every_bijection
def test_a_fresh_bijection_is_the_identity(name):
    bijection = BIJECTIONS[name](4, 2).double()
    x, c = batch(4, bijection.context)
    z, ladj = bijection(x, c)
    torch.testing.assert_close(z, x, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(ladj, torch.zeros_like(ladj), rtol=0, atol=1e-14)


@settings(max_examples=20)
@given(features=st.integers(1, 10), seed=st.integers(0, 1000), context=st.sampled_from([0, 2]))
def test_jacobians_have_the_shapes_of_the_papers_table(features, seed, context):
    lower = trained(LowerShift(features, context, hidden=(32, 32)), seed)
    upper = trained(UpperShift(features, context, hidden=(32, 32)), seed)
    scale = trained(SinusoidalLayer(features, context=context), seed)
    x, c = batch(features, context, rows=1, seed=seed)
    jac = {
        name: jacobian(lambda t, b=b: b(t, None if c is None else c[0])[0], x[0])
        for name, b in {"lower": lower, "upper": upper, "scale": scale}.items()
    }
    eye = torch.eye(features, dtype=DOUBLE)
    assert torch.equal(jac["lower"].triu(), eye)
    assert torch.equal(jac["upper"].tril(), eye)
    assert torch.equal(jac["scale"], torch.diag(jac["scale"].diagonal()))
    assert (jac["scale"].diagonal() > 0).all()
    if features > 1:
        assert (jac["lower"].tril(-1) != 0).any()
        assert (jac["upper"].triu(1) != 0).any()
    assert lower(x, c)[1].item() == upper(x, c)[1].item() == 0
    torch.testing.assert_close(scale(x, c)[1][0], jac["scale"].diagonal().log().sum())


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-2, 1.0, 100.0]))
def test_proposition_1_g_is_a_contraction(seed, scale):
    """‖G(u) − G(v)‖₁ ≤ M ‖u − v‖₁ with M = max |α| < 1, for each transformer of the chain."""
    one = trained(SinusoidalLayer(4, scales=1), seed, strength=0.999, frequency=(1e-3, 10.0))
    u, _ = batch(4, rows=50, seed=seed, scale=scale)
    v, _ = batch(4, rows=50, seed=seed + 1, scale=scale)
    g_u, g_v = one(u)[0] - u, one(v)[0] - v
    bound = (ALPHA_MAX * torch.tanh(one.strength)).abs().max()
    assert bound < 1
    distance = (u - v).abs().sum(-1)
    assert ((g_u - g_v).abs().sum(-1) <= bound * distance + 1e-13 * scale).all()


def test_defaults_of_the_blocks():
    assert LDUBlock(2, hidden=(4,)).bijections[1].frequency.shape == (4, 2, 4)
    assert SinusoidalLayer(2).frequency.shape == (4, 2, 4)
    layer = AutoregressiveWaves(2, hidden=(4,))
    assert (layer.transformer.scales, layer.transformer.waves) == (2, 4)
    assert SinusoidalLayer(2, context=1).network[0].out_features == 64


def test_ldu_is_lower_after_scale_after_upper():
    block = trained(LDUBlock(4, hidden=(16,)))
    upper, scale, lower = block
    assert isinstance(upper, UpperShift)
    assert isinstance(lower, LowerShift)
    x, _ = batch(4)
    torch.testing.assert_close(block(x)[0], lower(scale(upper(x)[0])[0])[0])
    torch.testing.assert_close(block(x)[1], scale(upper(x)[0])[1])


def test_conditional_waves_alternate_and_are_triangular():
    x, _ = batch(5, rows=1)
    for reverse in (False, True):
        layer = trained(AutoregressiveWaves(5, hidden=(32,), reverse=reverse))
        jac = jacobian(lambda t, b=layer: b(t)[0], x[0])
        assert torch.equal(jac, jac.triu() if reverse else jac.tril())
        assert (jac.tril(-1) if not reverse else jac.triu(1)).count_nonzero() == 10


def test_conditional_waves_have_bounded_scales():
    layer = trained(AutoregressiveWaves(2, scales=1, waves=1, hidden=(8,)))
    with torch.no_grad():
        layer.conditioner.head.weight.zero_()
        bias = layer.conditioner.head.bias.view(2, -1)
        bias.zero_()
        bias[:, 0], bias[:, 1] = 0.5, 1e6
    z, ladj = layer(torch.tensor([[1.0, -2.0]], dtype=DOUBLE))
    factor = torch.exp(torch.tensor(2.0, dtype=DOUBLE))
    torch.testing.assert_close(z, torch.stack([factor + 0.5, 0.5 - 2 * factor]).unsqueeze(0))
    torch.testing.assert_close(ladj, torch.tensor([4.0], dtype=DOUBLE))


def test_context_changes_the_waves_of_a_scale():
    scale = trained(SinusoidalLayer(2, context=3))
    x, c = batch(2, 3)
    assert not torch.allclose(scale(x, c)[0], scale(x, c + 1)[0])
    again = SinusoidalLayer(2, context=3, hidden=(5, 6))
    assert [m.out_features for m in again.network if hasattr(m, "out_features")][:2] == [5, 6]


def test_affine_starts_from_data():
    affine = ElementwiseAffine(3)
    x = torch.randn(1000, 3) * torch.tensor([2.0, 0.1, 1.0]) + torch.tensor([5.0, 0.0, -3.0])
    x[:, 2] = -3.0  # does not vary
    z = affine.initialize(x.T.contiguous(), None)
    torch.testing.assert_close(z.mean(-1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std(-1, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)
    assert affine.log_scale[2] == 0
    before = affine(x)[0]
    torch.testing.assert_close(affine(x)[0], before)  # a forward pass changes nothing


#: dtype, mean, log-scale, and whether the dtype can distinguish draws of mean + e^s z.
SCALES = [
    (torch.float32, 0.0, -87.0, True),
    (torch.float32, 0.0, 87.0, True),
    (torch.float32, 1e6, 0.0, True),
    (torch.float32, 0.5, -17.0, True),
    (torch.float32, 0.0, -110.0, False),  # e^-110 is 0
    (torch.float32, 0.0, -100.0, False),  # and e^100 infinity
    (torch.float32, 0.0, 100.0, False),
    (torch.float32, 3.0, -50.0, False),  # every draw is 3
    (torch.float32, 1e10, 0.0, False),
    (torch.float32, 0.0, torch.inf, False),
    (torch.float32, torch.nan, 0.0, False),
    (DOUBLE, 0.0, -110.0, True),
    (DOUBLE, 1e10, 0.0, True),
    (DOUBLE, 3.0, -50.0, False),
    (DOUBLE, 0.0, -750.0, False),
]


def check_draws(bijection, dtype, usable, name, distinct):
    """Of five draws of the second feature, some are distinct, or the parameters and the inverse are refused."""
    chain = Chain([bijection])
    if usable:
        chain.check_parameters()
        x, _ = bijection.inverse(torch.randn(5, 2, dtype=dtype))
        assert len(x[:, 1].unique()) >= distinct
        return
    with pytest.raises(
        ArgumentError, match=f"{name} is degenerate in 1 of 2 features|NaN or infinite in 1 of 2 entries"
    ):
        chain.check_parameters()
    for z in (torch.zeros(5, 2, dtype=dtype), torch.randn(5, 2, dtype=dtype)):
        with pytest.raises(InversionError, match="parameters are degenerate"):
            bijection.inverse(z)


@pytest.mark.parametrize(("dtype", "mean", "log_scale", "usable"), SCALES)
def test_an_affine_map_that_collapses_all_draws_is_degenerate(dtype, mean, log_scale, usable):
    affine = ElementwiseAffine(2).to(dtype)
    with torch.no_grad():
        affine.mean[1], affine.log_scale[1] = mean, log_scale
    check_draws(affine, dtype, usable, "affine map", distinct=2)


@pytest.mark.parametrize(
    ("dtype", "bias", "log_diagonal", "usable"),
    [
        (torch.float32, 3.0, 50.0, True),
        (torch.float32, 0.0, -80.0, True),
        (torch.float32, 0.0, 100.0, False),  # 1 / e^100 is 0
        (torch.float32, 0.0, -110.0, False),
        (torch.float32, 1e10, 0.0, False),  # every draw is -1e10
        (torch.float32, 0.0, torch.inf, False),
        (torch.float32, torch.nan, 0.0, False),
        (DOUBLE, 0.0, 100.0, True),
        (DOUBLE, 1e10, 0.0, True),
        (DOUBLE, 0.0, 750.0, False),
    ],
)
def test_a_linear_map_that_collapses_all_draws_is_degenerate(dtype, bias, log_diagonal, usable):
    linear = Linear(2).to(dtype)
    with torch.no_grad():
        linear.bias[1], linear.log_diagonal[1] = bias, log_diagonal
    check_draws(linear, dtype, usable, "linear map", distinct=5)


@pytest.mark.parametrize("x", [torch.tensor([[3e38, -3e38]]), torch.tensor([[1e-42, 0.0]]), torch.tensor([[1e9, 1e9]])])
def test_affine_does_not_start_from_data_that_float32_cannot_resolve(x):
    affine = ElementwiseAffine(1)
    with pytest.raises(ArgumentError, match="Standardise the data"):
        affine.initialize(x, None)
    assert affine.mean == affine.log_scale == 0  # as they were


def test_parameters_that_are_not_finite_are_named():
    chain = Chain([LDUBlock(2, hidden=(8,))])
    chain.check_parameters()
    with torch.no_grad():
        chain.bijections[0].bijections[0].conditioner.head.bias[1] = torch.nan
    with pytest.raises(ArgumentError, match=r"'bijections.0.bijections.0.conditioner.head.bias' is NaN .* in 1 of 2"):
        chain.check_parameters()


@pytest.mark.parametrize(("x", "ladj"), [(torch.inf, 0.0), (torch.nan, 0.0), (0.0, torch.inf), (0.0, torch.nan)])
def test_a_layer_cannot_certify_what_is_not_finite(x, ladj):
    class AlwaysConverged(ElementwiseAffine):
        def invert(self, z, context, options):
            honest = super().invert(z, context, options)
            of_x, of_ladj = (torch.tensor([0.0, value]) for value in (x, ladj))
            return honest._replace(x=honest.x + of_x, ladj=honest.ladj + of_ladj)

    certificate = Chain([AlwaysConverged(3)]).certified(torch.zeros(3, 2), None, SolverOptions())
    assert certificate.converged.tolist() == [[True, False]]
    with pytest.raises(InversionError, match="for 1 of 2 samples"):
        Chain([AlwaysConverged(3)]).inverse(torch.zeros(2, 3))


def test_chain_initializes_in_order():
    chain = Chain([trained(LDUBlock(2, hidden=(8,))), ElementwiseAffine(2).double()])
    x, _ = batch(2, rows=500)
    chain.initialize(x.T.contiguous(), None)
    z, _ = chain(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(2, dtype=DOUBLE), atol=1e-9, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(2, dtype=DOUBLE))


def test_chain_refuses_what_does_not_fit():
    for nothing in ([], None, 3):
        with pytest.raises(ArgumentError, match="at least one bijection"):
            Chain(nothing)
    with pytest.raises(ArgumentError, match="ElementwiseAffine has features=3, context=0 beside 2, 0"):
        Chain([ElementwiseAffine(2), ElementwiseAffine(3)])
    with pytest.raises(ArgumentError, match="context=2 beside 2, 3"):
        Chain([LowerShift(2, 2, hidden=(4,)), LowerShift(2, 3, hidden=(4,))])


def test_bad_input_says_what_was_expected_and_what_came():
    scale = SinusoidalLayer(3)
    with pytest.raises(ArgumentError, match=r"x must have shape \(\.\.\., 3\); got \(5, 4\)"):
        scale(torch.zeros(5, 4))
    with pytest.raises(ArgumentError, match=r"z must have shape \(\.\.\., 3\); got \(\)"):
        scale.inverse(torch.zeros(()))
    with pytest.raises(ArgumentError, match=r"dtype torch.float32 or torch.float64; got torch.int64"):
        scale(torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"x has dtype torch.float64, but the parameters have torch.float32"):
        scale(torch.zeros(5, 3, dtype=DOUBLE))
    with pytest.raises(ArgumentError, match="got list"):
        scale([1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match=r"a context of shape \(5, 2\) was passed, but .* context=0"):
        scale(torch.zeros(5, 3), torch.zeros(5, 2))
    conditional = SinusoidalLayer(3, context=2)
    with pytest.raises(ArgumentError, match=r"a context of shape \(\.\.\., 2\) is needed"):
        conditional(torch.zeros(5, 3))
    with pytest.raises(ArgumentError, match=r"context must have shape \(\.\.\., 2\); got \(5, 3\)"):
        conditional(torch.zeros(5, 3), torch.zeros(5, 3))
    with pytest.raises(ArgumentError, match=r"the context has dtype torch.float64, but x has torch.float32"):
        conditional(torch.zeros(5, 3), torch.zeros(5, 2, dtype=DOUBLE))
    with pytest.raises(ArgumentError, match=r"shape \(5, 3\) and context of shape \(4, 2\)"):
        conditional(torch.zeros(5, 3), torch.zeros(4, 2))
    for wrong in (lambda: SinusoidalLayer(0), lambda: SinusoidalLayer(2, context=-1)):
        with pytest.raises(ArgumentError, match="must be at least"):
            wrong()
    with pytest.raises(ArgumentError, match="scales and waves must be at least 1; got 0 and 4"):
        AutoregressiveWaves(2, scales=0)


def test_a_failed_inverse_raises_and_says_where():
    block = trained(LDUBlock(3, hidden=(8,)))
    z = torch.zeros(10, 3, dtype=DOUBLE)
    z[4, 1] = torch.nan
    with pytest.raises(InversionError, match=r"layer 'lower' .* 1 of 10 samples: they are NaN or infinite"):
        block.inverse(z)
    chain = Chain([SinusoidalLayer(3).double(), block])
    with pytest.raises(InversionError, match=r"layer '1\.lower'"):
        chain.inverse(z)
    assert list(chain.layer_names()) == ["1.lower", "1.scale", "1.upper", "0.SinusoidalLayer"]


def test_the_message_names_the_first_layer_that_failed():
    yes, no = torch.tensor([True, True]), torch.tensor([True, False])
    result = Inversion(
        torch.zeros(1, 2),
        torch.zeros(2),
        torch.tensor([[3, 3], [7, 9], [1, 1]]),
        torch.tensor([[0.0, 0.0], [1e-9, 0.125], [0.0, torch.nan]]),
        torch.stack([yes, no, no]),
    )
    with pytest.raises(
        InversionError, match=r"layer 'b' .* for 1 of 2 samples: after 9 iterations .* residual is 0\.125"
    ):
        raise_unless_converged(result, "abc")
    raise_unless_converged(result._replace(converged=torch.stack([yes, yes, yes])), "abc")


def test_no_inverse_while_dropout_is_active():
    shift = LowerShift(3, hidden=(8,), dropout=0.5)
    z = torch.zeros(2, 3)
    with pytest.raises(SinuflowError, match=r"dropout is active.*\.eval\(\)"):
        shift.inverse(z)
    shift.eval().inverse(z)
    LowerShift(3, hidden=(8,)).inverse(z)  # without dropout, training mode does no harm


@pytest.mark.parametrize("layer", [nn.Dropout, nn.AlphaDropout])
@pytest.mark.parametrize("name", ["dropout", "noise"])
def test_no_inverse_while_dropout_of_another_module_is_active(layer, name):
    z = torch.zeros(2, 3)
    for rate in (0.0, 0.5):
        bijection = ElementwiseAffine(3)
        bijection.add_module("network", nn.Sequential(OrderedDict({name: layer(rate)})))
        bijection.add_module(name, layer(rate))
        if rate:
            with pytest.raises(SinuflowError, match=r"dropout is active.*\.eval\(\)"):
                bijection.inverse(z)
            bijection.eval()
        bijection.inverse(z)


def test_a_large_batch_is_inverted_in_pieces():
    shift = trained(LowerShift(3, 2, hidden=(8,)))
    x, c = batch(3, 2, rows=5000)
    torch.testing.assert_close(shift.inverse(shift(x, c)[0], c)[0], x)


@pytest.mark.parametrize("kind", [LowerShift, AutoregressiveWaves])
def test_a_layer_used_twice_has_the_same_gradient_either_way(kind):
    layer = trained(kind(3, hidden=(8,), activation="tanh"))
    x, _ = batch(3)
    loss = Chain([layer, layer])(x)[0].sin().sum()
    parameters = list(layer.parameters())
    plain = torch.autograd.grad(loss, parameters, retain_graph=True)
    differentiable = torch.autograd.grad(loss, parameters, create_graph=True)
    for a, b in zip(plain, differentiable, strict=True):
        torch.testing.assert_close(a, b)


class Negated(Shift):
    """z = x - h, a subclass of a transformer with fused ops."""

    def forward(self, x, h):
        return super().forward(x, -h)


class Halved(Affine):
    def forward(self, x, h):
        z, ladj = super().forward(x, h)
        return z / 2, ladj - math.log(2) * len(x)


class Doubling:
    """A mixin that overrides forward."""

    def forward(self, x, context=None):
        return 2 * super().forward(x, context)


class DoubledMADE(Doubling, MADE):
    pass


class DoubledPixelCNN(PixelCNN):
    def forward(self, x, context=None):
        return 2 * super().forward(x, context)


class Own(DoubledMADE):
    """With an incremental evaluation of its own, which another class inherits."""

    def incremental(self, like, context=None):
        for step in MADE.incremental(self, like, context):
            yield (outer := Step(step.features, 2 * step.parameters))
            step.push(outer.solution)


class Inherited(Own):
    pass


@pytest.mark.parametrize("transformer", [Shift, Affine, Negated, Halved], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("network", [MADE, DoubledMADE, Own, Inherited, PixelCNN, DoubledPixelCNN])
def test_subclasses_that_override_forward_use_no_other_implementation(transformer, network):
    tau = transformer()
    args = {"shape": (1, 2, 2), "channels": 2} if issubclass(network, PixelCNN) else {"features": 4, "hidden": (8,)}
    layer = Autoregressive(tau, network(**args, outputs=tau.num_parameters)).double().eval()
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(0, 0.5)
    x, _ = batch(4)
    expected = tau(x.mT, layer.conditioner(x.mT))
    z, ladj = layer(x)
    torch.testing.assert_close(z.mT, expected[0])
    torch.testing.assert_close(ladj, expected[1])
    torch.testing.assert_close(layer.inverse(z)[0], x)
    weight = next(layer.parameters())
    (grad,) = torch.autograd.grad(layer(layer.inverse(z.detach())[0])[0].square().sum(), weight)
    assert float(grad.abs().max()) < 1e-8  # the implicit gradient of the inverse cancels that of the map
    assert ("incremental" in vars(Inherited), Inherited.incremental) == (False, Own.incremental)


def test_a_linear_map_is_what_its_log_determinant_and_inverse_say():
    check_bijection(Linear(4))
