"""The checks of user-made components accept what is right, and name what is wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import sinuflow
from sinuflow import ArgumentError, Chain, Flow, SinusoidalFlow
from sinuflow.bijections import AutoregressiveWaves, Bijection, ColumnMap, ElementwiseAffine, Log, Logit
from sinuflow.conditioners import Conditioner
from sinuflow.flows.bases import Base, StandardNormal, StudentT
from sinuflow.solvers import Inversion, Root, Step
from sinuflow.testing import (
    check_base,
    check_bijection,
    check_column_map,
    check_conditioner,
    check_flow,
    check_transformer,
)
from sinuflow.transformers import Affine, ConditionalWaves, Shift, Transformer
from tests.builders import BIJECTIONS


@pytest.mark.parametrize("name", BIJECTIONS)
def test_built_in_bijections_pass(name):
    check_bijection(BIJECTIONS[name](3, 2), rows=4)


@pytest.mark.parametrize("base", [StandardNormal(3), StudentT(3, 1.0), StudentT(3, 30.0, learnable=True)], ids=repr)
def test_built_in_bases_pass(base):
    check_base(base)


def test_built_in_flows_pass_and_are_not_changed(monkeypatch):
    flow = SinusoidalFlow(2, 2, blocks=1, hidden=(4,), dropout=0.5)
    before = {name: t.clone() for name, t in flow.state_dict().items()}
    x, state = torch.randn(5, 2), torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", None)  # generators of GPUs are left alone
    check_flow(flow, torch.zeros(5, 2), x=x)
    check_transformer(Affine())
    check_base(StandardNormal(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert flow.training
    assert all(torch.equal(t, before[name]) for name, t in flow.state_dict().items())
    check_flow(SinusoidalFlow.image((1, 2, 2), blocks=1, channels=2), rows=3)
    check_flow(Flow(ElementwiseAffine(2), StudentT(2, 3.0)), perturb=0.0)


class Scaling(Bijection):
    """Right in all respects; the mistakes derive from it."""

    def __init__(self, features: int = 3) -> None:
        super().__init__(features)
        self.log_scale = nn.Parameter(torch.zeros(features))

    def transform(self, x, context):
        log_scale = self.log_scale.to(x.dtype)
        return x * log_scale.exp().unsqueeze(-1), log_scale.sum().expand(x.shape[-1])

    def invert(self, z, context, options):
        log_scale = self.log_scale.to(z.dtype)
        return Inversion.exact(z * (-log_scale).exp().unsqueeze(-1), -log_scale.sum().expand(z.shape[-1]))


def transforming(change):
    return type("Mistake", (Scaling,), {"transform": lambda self, x, c: change(self, *Scaling.transform(self, x, c))})


def inverting(change):
    def invert(self, z, context, options):
        return change(self, Scaling.invert(self, z, context, options))

    return type("Mistake", (Scaling,), {"invert": invert})


MISTAKES = [
    (transforming(lambda self, z, ladj: (z, -ladj)), "its log-determinant differs from that of its Jacobian by 0"),
    (
        transforming(lambda self, z, ladj: (z[:2], ladj)),
        r"transform returned z of shape \(2, 8\) instead of \(3, 8\), \(features, rows\)",
    ),
    (
        transforming(lambda self, z, ladj: (z, ladj[:, None])),
        r"transform returned a log-determinant of shape \(8, 1\) instead of \(8,\), \(rows,\)",
    ),
    (transforming(lambda self, z, ladj: z), "transform must return z and its log-determinant; got a Tensor"),
    (transforming(lambda self, z, ladj: (z / 0, ladj)), "NaN or infinite"),
    (transforming(lambda self, z, ladj: (z - z.mean(-1, keepdim=True), ladj)), "z of a row depends on the other rows"),
    (transforming(lambda self, z, ladj: (z.detach(), ladj)), "differs from finite differences|Jacobian"),
    (inverting(lambda self, layer: layer._replace(x=layer.x + 1e-3)), "does not map back to z; it is off by 0.001"),
    (inverting(lambda self, layer: layer._replace(ladj=-layer.ladj)), "the log-determinants do not cancel"),
    (inverting(lambda self, layer: layer._replace(x=layer.x.detach())), "the gradient of its inverse with respect to"),
    (inverting(lambda self, layer: Inversion(*(t.detach() for t in layer))), "its inverse has no gradients"),
    (
        inverting(lambda self, layer: layer._replace(x=layer.x.nan_to_num(posinf=0), converged=layer.converged | True)),
        "the certificate of infinite noise claims convergence",
    ),
    (inverting(lambda self, layer: layer._replace(converged=layer.converged & False)), "has not converged for 8 of 8"),
    (
        inverting(lambda self, layer: layer._replace(converged=layer.converged.all().expand(len(layer.converged)))),
        "an infinite row makes the inverse of other rows fail",
    ),
]


def test_a_bijection_without_mistakes_passes():
    check_bijection(Scaling())


@pytest.mark.parametrize(("cls", "message"), MISTAKES)
def test_mistakes_are_named(cls, message):
    with pytest.raises(AssertionError, match=rf"^bijection \(Mistake\): .*({message})"):
        check_bijection(cls())
    chain = Chain([ElementwiseAffine(3), cls()])
    with pytest.raises(AssertionError, match=rf"^bijection.bijections.1 \(Mistake\): .*({message})"):
        check_flow(Flow(chain), save=False)


def test_conditioners_that_are_not_autoregressive_are_named():
    layer = AutoregressiveWaves(3, hidden=(8,))
    for masked in [*layer.conditioner.layers, layer.conditioner.head]:
        masked.mask.fill_(1)
    with pytest.raises(AssertionError, match=r"^bijection.conditioner \(MADE\): its parameters of feature 0 depend on"):
        check_bijection(layer)


class Neighbours(Conditioner):
    """Parameters of a feature are the features before it; the mistakes derive from it."""

    def forward(self, x, context=None):
        return x.roll(1, 0).cumsum(0).unsqueeze(1) - x[-1:].unsqueeze(1)

    def incremental(self, like, context=None):
        total = torch.zeros_like(like[:1])
        for i in range(self.features):
            yield (step := Step(slice(i, i + 1), total.unsqueeze(1)))
            total = total + step.solution


def conditioning(forward=Neighbours.forward, incremental=Neighbours.incremental):
    return type("Mistake", (Neighbours,), {"forward": forward, "incremental": incremental})


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (conditioning(lambda self, x, c=None: x), "its output has shape"),
        (
            conditioning(lambda self, x, c=None: x.unsqueeze(1), Conditioner.incremental),
            "its parameters of feature 0 depend on feature 0; they may depend on preceding features only",
        ),
        (
            conditioning(lambda self, x, c=None: x.roll(1, 0).cumsum(0).unsqueeze(1)),
            "its parameters of feature 0 depend on feature 2; they may depend on preceding features only",
        ),
        (conditioning(lambda self, x, c=None: 0 * x.unsqueeze(1)), "the parameters of step 1 differ from forward"),
        (
            conditioning(lambda self, x, c=None: 0 * x.unsqueeze(1), lambda self, like, c=None: iter(())),
            "its steps leave out 3 features",
        ),
        (
            conditioning(incremental=lambda self, like, c=None: self(like, c)),
            "incremental must yield Steps; got a Tensor",
        ),
        (
            conditioning(incremental=lambda self, like, c=None: iter([Step(slice(0, 1), like[:1] * 0)])),
            r"the parameters of step 0 have shape \(1, 8\) instead of \(1, 1, 8\)",
        ),
        (
            conditioning(
                lambda self, x, c=None: x.unsqueeze(1),
                lambda self, like, c=None: iter([Step(slice(0, 3), like.unsqueeze(1))]),
            ),
            "its parameters of feature 0 depend on feature 0",
        ),
    ],
)
def test_mistakes_of_conditioners_are_named(cls, message):
    check_conditioner(Neighbours(3, 1))
    with pytest.raises(AssertionError, match=rf"^conditioner \(Mistake\): .*{message}"):
        check_conditioner(cls(3, 1))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"forward": lambda self, x, h: (-x, 0 * x.sum(0))}, "its derivative is -1 somewhere"),
        ({"forward": lambda self, x, h: (2 * x, 0 * x.sum(0))}, "its log-determinant differs .* by 2.08"),
        (
            {"forward": lambda self, x, h: (x + torch.zeros(3, 1), 0 * x.sum(0))},
            r"it must be elementwise, .* belongs in h, but for x of shape \(1, 24\) it returns z of shape \(3, 24\)",
        ),
        (
            {"forward": lambda self, x, h: (x + x.sum(0), 0 * x.sum(0))},
            "it must be elementwise, but z of an element changes with the others by",
        ),
        ({"forward": lambda self, x, h: (x.log(), -x.log().sum(0))}, "it must map R onto R, but z is NaN or infinite"),
        (
            {"forward": lambda self, x, h: (x - 2 * (x - 4).relu(), (x - 4).sign().log().nan_to_num().sum(0))},
            "it must increase, but z falls or is NaN for some x",
        ),
        ({"forward": lambda self, x, h: (x.T, 0 * x.sum(0))}, "its shapes are"),
        (
            {"forward": lambda self, x, h: (x + h[:, 0], 0 * x)},
            r"instead of \(3, 8\) for z and \(8,\) for the log-determinant, a sum over features",
        ),
        (
            {
                "forward": lambda self, x, h: (x.tanh(), (1 - x.tanh() ** 2).log().sum(0)),
                "inverse": Transformer.inverse,
                "gradients": Transformer.gradients,
            },
            "it must map R onto R, but its inverse fails at z = -300",
        ),
        ({"inverse": lambda self, z, h, options: Root.exact(z, z * 0 + 1)}, r"x = inverse\(z\) does not map back"),
        ({"inverse": lambda self, z, h, options: Root.exact(z - h[:, 0], z * 0 + 2)}, "the slope that its inverse"),
        ({"gradients": lambda self, x, h, gz, gl: (gz, gz.unsqueeze(1) * 2)}, "its gradients differ"),
    ],
)
def test_mistakes_of_transformers_are_named(methods, message):
    for transformer in (Shift(), Affine(), ConditionalWaves(2, 2)):
        check_transformer(transformer)
    with pytest.raises(AssertionError, match=rf"^transformer \(Mistake\): .*{message}"):
        check_transformer(type("Mistake", (Shift,), methods)())


def test_what_is_no_instance_is_refused():
    unnumbered = type("Own", (Transformer,), {"forward": Affine.forward})()
    with pytest.raises(AssertionError, match=r"transformer \(Own\): it must set num_parameters"):
        check_transformer(unnumbered)
    for check, cls in [
        (check_flow, SinusoidalFlow),
        (check_transformer, Affine),
        (check_conditioner, Neighbours),
        (check_base, StudentT),
    ]:
        with pytest.raises(ArgumentError, match=rf"got the class {cls.__name__}: pass an instance"):
            check(cls)
    with pytest.raises(ArgumentError, match="column_map must be a ColumnMap; got function"):
        check_column_map(lambda x: x, torch.zeros(3))


class Wide(Base):
    def log_prob(self, z):
        return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)

    def sample(self, shape):
        return 1.2 * torch.randn(*shape, self.features)


def test_wrong_bases_are_named():
    with pytest.raises(AssertionError, match=r"base \(Wide\): its draws do not fit its log_prob: .* is -1.4"):
        check_flow(Flow(ElementwiseAffine(2), Wide(2)))
    flat = type("Flat", (Wide,), {"sample": lambda self, shape: torch.randn(shape)})
    with pytest.raises(AssertionError, match=r"base \(Flat\): sample\(\(\)\) has shape \(\)"):
        check_base(flat(2))
    apart = type("Apart", (Wide,), {"log_prob": lambda self, z: -(z**2)})
    with pytest.raises(AssertionError, match=r"log_prob of \(2,\) has shape \(2,\) instead of \(\)"):
        check_base(apart(2))


class Mixture(Base):
    """Two normals; PyTorch's Categorical has no empty draws."""

    def distribution(self):
        normal = torch.distributions.Normal(torch.tensor([-1.0, 1.0]).double(), 0.5)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(2).double()), normal)

    def log_prob(self, z):
        return self.distribution().log_prob(z).sum(-1)

    def sample(self, shape):
        return self.distribution().sample((*shape, self.features))


def test_bases_need_no_empty_draws_and_are_named_when_they_raise():
    check_base(Mixture(2))
    broken = type("Broken", (Mixture,), {"sample": lambda self, shape: torch.randn(shape[5], 2)})
    with pytest.raises(AssertionError, match=r"base \(Broken\): sample\(\(\)\) or log_prob of its draws raises: tuple"):
        check_base(broken(2))


@sinuflow.register(name="tests.Shrunk")
class Shrunk(ColumnMap):
    """Stores its argument, but not as a buffer."""

    def __init__(self, scale):
        super().__init__()
        self.factor = scale

    def value(self, x):
        return x / self.factor


def test_column_maps_are_checked_in_their_domain():
    values = torch.linspace(0.01, 0.99, 50) ** 3
    check_column_map(Log(), values)
    check_column_map(Log(), [3.0])
    check_column_map(Log, [0.1, 1.0, 1e10])
    check_column_map(Logit, values)
    with pytest.raises(AssertionError, match=r"column map \(Log\): value is NaN or infinite at -1"):
        check_column_map(Log(), torch.tensor([-1.0, 1.0]))
    with pytest.raises(AssertionError, match=r"column map \(Shrunk\): it raises TypeError.*; pass numbers on by super"):
        check_column_map(Shrunk(2.0), values)
    with pytest.raises(ArgumentError, match="is checked by check_column_map"):
        check_bijection(Log())


def test_flows_that_cannot_be_saved_are_named():
    with pytest.raises(AssertionError, match=r"cannot be saved and loaded: .*Scaling is not registered"):
        check_flow(Flow(Scaling()))
    check_flow(Flow(Scaling()), save=False)
    assert sinuflow.testing.check_flow is check_flow
