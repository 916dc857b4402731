"""Flows of any bijection and base: distributions, files, registered classes."""

from __future__ import annotations

import copy
import functools
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import sinuflow
from sinuflow import ArgumentError, Chain, Flow, InversionError, SinuflowError, SinusoidalFlow, StorageError
from sinuflow.bijections import (
    Autoregressive,
    AutoregressiveWaves,
    Bijection,
    ElementwiseAffine,
    LDUBlock,
    LowerShift,
    UpperShift,
)
from sinuflow.bijections.columns import Log, Standardize
from sinuflow.bijections.image import ImageShift
from sinuflow.conditioners import MADE, Conditioner
from sinuflow.flows import storage
from sinuflow.flows.bases import Base, StandardNormal, StudentT
from sinuflow.ops.flow_program import layout
from sinuflow.registry import Spec
from sinuflow.solvers import Inversion, Root, Step
from sinuflow.testing import check_flow
from sinuflow.transformers import Affine, Shift, Transformer
from tests.builders import trained, trained_flow

DOUBLE = torch.float64


@sinuflow.register(name="tests.Roll")
class Roll(Bijection):
    """A permutation, without parameters."""

    def __init__(self, features: int, steps: int = 1, context: int = 0) -> None:
        super().__init__(features, context)
        self.steps = steps

    def transform(self, x, context):
        return x.roll(self.steps, 0), x.new_zeros(x.shape[-1])

    def invert(self, z, context, options):
        return Inversion.exact(z.roll(-self.steps, 0), z.new_zeros(z.shape[-1]))


@sinuflow.register(name="tests.Centred")
class Centred(Bijection):
    """A bijection with buffers of several dtypes."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("origin", torch.zeros(features, dtype=DOUBLE))
        self.register_buffer("sign", torch.zeros(features) + 1, persistent=False)
        self.scale = nn.Parameter(torch.ones(features), requires_grad=False)

    def transform(self, x, context):
        scale = (self.sign * self.scale).to(x).unsqueeze(-1)
        return scale * (x - self.origin.to(x).unsqueeze(-1)), scale.log().sum().expand(x.shape[-1])


@sinuflow.register(name="tests.Laplace")
class Laplace(Base):
    """The least that a base needs."""

    def log_prob(self, z):
        return -(z.abs() + math.log(2)).sum(-1)

    def sample(self, shape):
        return torch.distributions.Laplace(0.0, 1.0).sample((*shape, self.features))


def composed(base: Base | None = None, dtype: torch.dtype = DOUBLE, context: int = 0) -> Flow:
    layers = [LDUBlock(3, context, 1, hidden=(8,)), Roll(3, 2), ElementwiseAffine(3)]
    trained(chain := Chain(layers), dtype=dtype)
    return Flow(chain, base).eval().to(dtype)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_a_flow_of_the_same_chain_is_the_same_distribution_bit_for_bit():
    flow = trained_flow(3, 2)
    same = Flow(flow.bijection)
    c, x = torch.randn(4, 2, dtype=DOUBLE), torch.randn(4, 3, dtype=DOUBLE)
    assert torch.equal(same(c).log_prob(x), flow(c).log_prob(x))
    for ours, theirs in zip(
        same(c).rsample_and_log_prob((5,), seeded()), flow(c).rsample_and_log_prob((5,), seeded()), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert same.state_dict().keys() == flow.state_dict().keys()


@pytest.mark.parametrize("base", [None, StudentT(3, 3.0, learnable=True), Laplace(3)], ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("context", [0, 2])
def test_log_densities_of_draws_and_of_values_agree(base, context, monkeypatch):
    flow = composed(base, context=context)
    d = flow(torch.randn(4, 2, dtype=DOUBLE)) if context else flow().expand([4])
    x, log_p = d.rsample_and_log_prob((5,), seeded())
    assert x.shape == (5, 4, 3)
    torch.testing.assert_close(d.log_prob(x), log_p, rtol=1e-8, atol=1e-8)
    assert torch.equal(d.sample((5,), seeded()), x.detach())
    assert not torch.equal(d.sample((5,), torch.Generator().manual_seed(2)), x.detach())
    state = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", None)  # those of GPUs are left alone, too
    cold = d.sample((5,), seeded(), temperature=0.5, certify="end-to-end")
    assert torch.equal(torch.get_rng_state(), state)  # a generator leaves the default one alone
    noise, halved = (flow.bijection(t, d.context)[0] for t in (x, cold))
    torch.testing.assert_close(halved, 0.5 * noise)


@pytest.mark.parametrize("base", [StandardNormal(1), StudentT(1, 2.5), Laplace(1)], ids=lambda b: type(b).__name__)
def test_densities_of_bases_integrate_to_one_and_fit_their_draws(base):
    z = torch.linspace(-60, 60, 200_001, dtype=DOUBLE).unsqueeze(-1)
    density = base.double().log_prob(z).exp()
    assert float(torch.trapezoid(density, z.squeeze(-1))) == pytest.approx(1, abs=1e-3)
    draws = base.draw((100_000,), seeded(), z)
    inside = float(density[z.abs().squeeze(-1) <= 1].sum() * 120 / 200_000)
    assert float((draws.abs() <= 1).double().mean()) == pytest.approx(inside, abs=0.01)


def test_the_degrees_of_freedom_are_learned():
    torch.manual_seed(0)
    x = torch.distributions.StudentT(2.0).sample((4000, 1))
    flow = Flow(ElementwiseAffine(1), StudentT(1, df=10.0, learnable=True))
    assert not any(p.requires_grad for p in StudentT(1).parameters())
    sinuflow.fit(flow, x, steps=200, batch_size=1000, learning_rate=5e-2, progress=False, device="cpu")
    assert 1.5 < float(flow.base.df.detach()) < 2.7
    grad = torch.autograd.grad(flow().rsample((9,)).square().sum(), list(flow.parameters()))
    assert all(bool(g.isfinite().all()) for g in grad)


def test_a_flow_without_parameters_takes_its_dtype_from_the_context():
    flow = Flow(Roll(3, context=2))
    assert flow(torch.zeros(4, 2, dtype=DOUBLE)).sample((2,)).dtype == DOUBLE
    assert Flow(Roll(3))().sample((2,)).dtype == torch.float32
    assert Flow(Roll(3)).invert(torch.zeros(2, 3)).converged.all()


def test_wrong_parts_are_refused():
    for arguments, message in [
        ((nn.Linear(2, 2),), "bijection must be a Bijection; got Linear"),
        ((Roll(3), nn.Linear(2, 2)), "base must be a Base; got Linear"),
        ((Roll(3), StudentT(2)), "the base has 2 features, but the bijection has 3"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            Flow(*arguments)
    with pytest.raises(ArgumentError, match="every entry of a chain must be a Bijection; got the class Roll"):
        Chain([Roll(3), Roll])
    for df in (0, -1.0, math.inf, math.nan, "3"):
        with pytest.raises(ArgumentError, match="df must be a positive number"):
            StudentT(2, df)
    with pytest.raises(ArgumentError, match="features must be"):
        StandardNormal(0)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    "base", [None, StudentT(3, 3.0, learnable=True), StudentT(3), Laplace(3)], ids=lambda b: type(b).__name__
)
def test_what_is_loaded_is_what_was_saved(base, dtype, tmp_path):
    flow = composed(base, dtype, context=2)
    flow.save(tmp_path / "m.safetensors")
    loaded = sinuflow.load(tmp_path / "m.safetensors")
    assert type(loaded) is Flow
    assert loaded.spec() == flow.spec()
    c, x = torch.randn(4, 2, dtype=dtype), torch.randn(4, 3, dtype=dtype)
    assert torch.equal(loaded(c).log_prob(x), flow(c).log_prob(x))
    assert torch.equal(loaded(c).sample((2,), seeded()), flow(c).sample((2,), seeded()))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in flow.parameters()]
    assert not loaded.training


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_buffers_keep_their_values_and_dtypes(dtype, tmp_path):
    layer = Centred(2)
    layer.count += 5
    layer.origin += 1e9
    layer.scale.data += 0.5
    layer.scale.data = layer.scale.data.to(dtype)
    flow = Flow(Chain([layer, ElementwiseAffine(2).to(dtype)]))
    flow.save(tmp_path / "m")
    loaded = sinuflow.load(tmp_path / "m")
    for (name, ours), (_, theirs) in zip(flow.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert torch.equal(ours, theirs), name
        assert ours.dtype == theirs.dtype
    sign = loaded.bijection.bijections[0].sign
    assert torch.equal(sign, torch.ones(2, dtype=dtype))
    assert not loaded.bijection.bijections[0].scale.requires_grad


def test_the_two_built_in_flows_have_files_of_version_1(tmp_path):
    def version(flow: Flow) -> str:
        flow.save(tmp_path / "m")
        return storage.read_tensor_file(tmp_path / "m")[0]["format_version"]

    assert version(SinusoidalFlow(2, blocks=1, hidden=(4,))) == "1"
    assert version(SinusoidalFlow.image((1, 2, 2), blocks=1)) == "1"
    assert version(Flow(SinusoidalFlow(2, blocks=1, hidden=(4,)).bijection)) == "2"


@sinuflow.register(name="tests.Doubled")
class Doubled(SinusoidalFlow):
    """A flow of hyperparameters with a method of its own."""

    def doubled(self, x):
        return self().log_prob(2 * x)


@sinuflow.register(name="tests.Square")
class Square(sinuflow.ImageFlow):
    """An image flow with one argument."""

    def __init__(self, size: int) -> None:
        super().__init__((1, size, size), blocks=1, channels=2)


class Unregistered(SinusoidalFlow):
    pass


def test_subclasses_of_the_built_in_flows_are_loaded_as_such(tmp_path):
    for flow in (Doubled(2, blocks=1, hidden=(4,)), Square(2)):
        flow.save(tmp_path / "m")
        assert storage.read_tensor_file(tmp_path / "m")[0]["format_version"] == "2"
        loaded = sinuflow.load(tmp_path / "m")
        assert type(loaded) is type(flow)
        assert loaded.config == flow.config
    with pytest.raises(StorageError, match="Unregistered is not registered"):
        Unregistered(2, blocks=1, hidden=(4,)).save(tmp_path / "m")


def test_classes_that_are_not_registered_are_neither_saved_nor_loaded(tmp_path):
    class Own(Roll):
        pass

    class Chain(Roll):  # the name of another class
        pass

    for cls in (Own, Chain):
        with pytest.raises(StorageError, match=rf"{cls.__name__} is not registered; put @sinuflow.register before it"):
            Flow(sinuflow.Chain([ElementwiseAffine(3), cls(3)])).save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    spec = Flow(Roll(3)).spec().to_json()
    spec["arguments"]["bijection"]["class"] = "lab.Spline"
    storage.write_model(tmp_path / "m", storage.Model("flow", spec, {}), 2)
    message = "the class 'lab.Spline' is not registered: import the module that defines it"
    with pytest.raises(StorageError, match=message):
        sinuflow.load(tmp_path / "m")


def test_what_no_file_can_hold_is_not_saved(tmp_path):
    @sinuflow.register(name="tests.Table")
    class Table(Bijection):
        def __init__(self, table: object) -> None:
            super().__init__(2)

    message = r"'table' of tests\.Table is an argument of type Tensor, which no file can hold"
    with pytest.raises(StorageError, match=message):
        Flow(Table(torch.zeros(2))).save(tmp_path / "m")
    tied = Chain([ElementwiseAffine(2), ElementwiseAffine(2)])
    tied.bijections[1].mean = tied.bijections[0].mean
    with pytest.raises(
        StorageError, match=r"bijections.0.mean and .*bijections.1.mean share memory; create one tensor"
    ):
        Flow(tied).save(tmp_path / "m")
    flow = Flow(ElementwiseAffine(2), StudentT(2))
    flow.base.log_df.data[0] = math.nan
    with pytest.raises(StorageError, match="'log_df' of the base is NaN"):
        flow.save(tmp_path / "m")
    with pytest.raises(StorageError, match="needs far more parameters"):
        Flow(Chain([Roll(2, context=0) for _ in range(1200)])).save(tmp_path / "m")


class Mixin:
    """A constructor outside of the components."""

    def __init__(self, features: int, steps: int = 1) -> None:
        super().__init__(features, steps)


def wrapped(cls):
    """A class decorator that replaces the constructor."""
    constructor = cls.__init__

    @functools.wraps(constructor)
    def construct(self, *args, **kwargs):
        constructor(self, *args, **kwargs)

    cls.__init__ = construct
    return cls


@sinuflow.register(name="tests.Mixed")
class Mixed(Mixin, Roll):
    pass


@sinuflow.register(name="tests.Wrapped")
@wrapped
class Wrapped(Roll):
    def __init__(self, features: int, steps: int = 1) -> None:
        super().__init__(features, steps)


@sinuflow.register(name="tests.Variadic")
class Variadic(Roll):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)


@sinuflow.register(name="tests.Positional")
class Positional(Roll):
    def __init__(self, features: int, steps: int = 1, /) -> None:
        super().__init__(features, steps)


@pytest.mark.parametrize("cls", [Mixed, Wrapped, Variadic, Positional])
def test_unknown_arguments_are_not_left_out_of_files(cls, tmp_path):
    flow = Flow(Chain([cls(3, 2), ElementwiseAffine(3)]))  # works, but cannot be stored
    x = torch.randn(4, 3)
    assert torch.equal(flow.bijection.inverse(flow.bijection(x)[0])[0], x)
    assert cls.__name__ in str(flow.draw())
    for describe in (flow.spec, lambda: flow.save(tmp_path / "m")):
        with pytest.raises(StorageError, match=f"the arguments of a {cls.__name__} are not known: define __init__"):
            describe()
    assert not (tmp_path / "m").exists()


def test_keys_that_are_not_strings_are_not_saved(tmp_path):
    @sinuflow.register(name="tests.Keyed")
    class Keyed(Roll):
        def __init__(self, features: int, table: dict) -> None:
            super().__init__(features)

    Flow(Keyed(2, {"0": 1.0})).save(tmp_path / "m")
    with pytest.raises(StorageError, match=r"'table' of tests\.Keyed has a dictionary with keys that are not strings"):
        Flow(Keyed(2, {0: 1.0})).save(tmp_path / "m")


@pytest.mark.parametrize("change", ["swap", "append", "replace"])
def test_a_changed_chain_is_saved_as_it_is(change, tmp_path):
    flow = composed(dtype=torch.float32)
    layers = flow.bijection.bijections
    if change == "swap":
        layers[0], layers[1] = layers[1], layers[0]
    elif change == "append":
        layers.append(ElementwiseAffine(3))
    else:
        layers[1] = Roll(3, 1)
    flow.save(tmp_path / "m")
    x = torch.randn(4, 3)
    assert torch.equal(sinuflow.load(tmp_path / "m")().log_prob(x), flow().log_prob(x))


def replaced_base(flow: Flow) -> Flow:
    flow.base = StudentT(3)
    return flow


def replaced_part(flow: Flow) -> Flow:
    block = flow.bijection.bijections[0].bijections
    block[0], block[2] = block[2], block[0]
    return flow


def reordered(flow: Flow) -> Flow:
    layers = flow.bijection.bijections
    layers[0], layers[1] = layers[1], layers[0]
    return flow


@pytest.mark.parametrize(
    "change",
    [
        lambda: replaced_base(composed()),
        lambda: replaced_part(composed()),
        lambda: replaced_part(SinusoidalFlow(3, blocks=1, hidden=(4,))),
        lambda: reordered(SinusoidalFlow(3, conditioning="full", blocks=2, hidden=(4,))),
    ],
    ids=["base", "block", "flow", "order"],
)
def test_components_that_were_replaced_are_not_saved(change, tmp_path):
    flow = copy.deepcopy(change())
    with pytest.raises(StorageError, match="were replaced: construct a new one"):
        flow.save(tmp_path / "m")


def test_copies_of_a_flow_are_saved(tmp_path):
    for flow in (composed(), SinusoidalFlow(3, blocks=1, hidden=(4,))):
        for again in (copy.deepcopy(flow), pickle.loads(pickle.dumps(flow))):
            again.save(tmp_path / "m")
            assert again.spec() == flow.spec()


@pytest.mark.parametrize("form", [list, tuple, nn.ModuleList, iter])
def test_a_chain_of_any_iterable_is_saved(form, tmp_path):
    chain = copy.deepcopy(Chain(form([Roll(2), ElementwiseAffine(2)])))
    assert layout(chain.spec(), chain.named_parameters()) is None
    assert len(chain.spec().arguments["bijections"]) == 2
    Flow(chain).save(tmp_path / "m")
    assert sinuflow.load(tmp_path / "m").spec() == Flow(chain).spec()


def test_specs_have_the_defaults_of_networks():
    for cls in (LDUBlock, LowerShift, UpperShift, AutoregressiveWaves):
        assert cls(2).spec() == cls(2, hidden=(256, 256), dropout=0.0).spec(), cls
        assert cls(2).spec().arguments["hidden"] == [256, 256]
    assert ImageShift((1, 2, 2)).spec().arguments["channels"] == 16
    chain = Chain([LDUBlock(2), LDUBlock(2, hidden=(256, 256)), ElementwiseAffine(2)])
    assert layout(chain.spec(), chain.named_parameters()) is not None


def test_integers_that_are_no_sizes_have_any_magnitude(tmp_path):
    columns = Chain([Log(-(10**9)), Standardize(centre=1_600_000_000, scale=86_400)])
    Flow(columns, StudentT(1, df=100_000)).save(tmp_path / "m")
    assert str(sinuflow.load(tmp_path / "m").spec()) == str(Flow(columns, StudentT(1, df=100_000)).spec())


def test_numpy_numbers_are_stored_as_numbers(tmp_path):
    Flow(Roll(np.int64(3), steps=np.int32(2))).save(tmp_path / "m")
    assert sinuflow.load(tmp_path / "m").bijection.steps == 2


SPECS = [
    ([], "invalid configuration"),
    ({"class": "Flow"}, "must have the keys class and arguments"),
    ({"class": 3, "arguments": {}}, "class must be a string"),
    ({"class": "Flow", "arguments": []}, "its arguments a dictionary"),
    ({"class": "Flow", "arguments": {}}, "missing 1 required positional argument"),
    ({"class": "Flow", "arguments": {"bijection": 3}}, "bijection must be a Bijection"),
    ({"class": "Flow", "arguments": {"bijection": None, "colour": 3}}, "unexpected keyword argument"),
    ({"class": "StudentT", "arguments": {"features": 2}}, "it describes a StudentT"),
]
LAYERS = [
    (("ElementwiseAffine", {"features": "2"}), "invalid configuration"),
    (("ElementwiseAffine", {"features": -1}), "features must be at least 1"),
    (("ElementwiseAffine", {"features": 10**6}), "far too few parameters"),
    (("ElementwiseAffine", {"features": 2, "self": 1}), "invalid configuration"),
    (("LDUBlock", {"features": 2, "hidden": [10**5] * 1000}), "far too few parameters"),
    (("LDUBlock", {"features": 2, "hidden": list(range(1024))}), "invalid configuration"),
    (("LDUBlock", {"features": 2, "hidden": [90_000, 90_000]}), "far too few parameters"),
    (("LDUBlock", {"features": 400, "scales": 300, "waves": 300}), "far too few parameters"),
    (("tests.Roll", {"features": 2, "context": 1}), "far too few|does not fit"),
    (("Chain", {"bijections": []}), "a chain needs at least one bijection"),
]


@pytest.mark.parametrize(("spec", "message"), SPECS)
def test_specs_that_are_invalid_are_refused(spec, message, tmp_path):
    storage.write_model(tmp_path / "m", storage.Model("flow", spec, {}), 2)
    with pytest.raises(StorageError, match=message):
        sinuflow.load(tmp_path / "m")


@pytest.mark.parametrize(("layer", "message"), LAYERS)
def test_layers_that_do_not_fit_their_tensors_are_refused(layer, message, tmp_path):
    flow = Flow(Chain([ElementwiseAffine(2), AutoregressiveWaves(2, hidden=(4,))]))
    spec = flow.spec()
    spec.arguments["bijection"].arguments["bijections"][0] = Spec(*layer)
    storage.write_model(tmp_path / "m", storage.Model("flow", spec.to_json(), flow.state_dict()), 2)
    with pytest.raises(StorageError, match=message):
        sinuflow.load(tmp_path / "m")


def test_specs_that_are_nested_deeply_are_refused(tmp_path):
    spec = ElementwiseAffine(2).spec().to_json()
    for _ in range(300):
        spec = {"class": "Chain", "arguments": {"bijections": [spec]}}
    config = {"class": "Flow", "arguments": {"bijection": spec, "base": None}}
    storage.write_model(tmp_path / "m", storage.Model("flow", config, {"a": torch.zeros(2)}), 2)
    with pytest.raises(StorageError):
        sinuflow.load(tmp_path / "m")


def test_a_flow_is_trained_like_any_other():
    torch.manual_seed(0)
    x = torch.randn(500, 3) * torch.tensor([1.0, 2.0, 3.0]) + 5
    flow = Flow(Chain([LDUBlock(3, hidden=(8,)), Roll(3), ElementwiseAffine(3)]))
    result = sinuflow.fit(flow, x, x[:100], steps=40, progress=False, device="cpu")
    assert result.best_nll < 6.3  # the entropy is 6.05
    assert flow.initialize(x) is None


class Scaled(Transformer):
    """A transformer with a parameter of its own."""

    num_parameters = 1

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x, h):
        return self.log_scale.exp() * x + h[:, 0], self.log_scale.expand(x.shape).sum(0)


def transformer(forward, **others) -> Transformer:
    return type("Own", (Transformer,), {"num_parameters": 1, "forward": forward, **others})()


def conditioner(forward=lambda self, x, c=None: 0 * x.unsqueeze(1), **others) -> Conditioner:
    return type("Own", (Conditioner,), {"forward": forward, **others})(3, 1)


def test_a_part_with_parameters_belongs_to_one_layer():
    layer, shared, made = ElementwiseAffine(3), Scaled(), MADE(3)
    for layers, places in [
        ([layer, layer], "bijection.bijections.0 and bijection.bijections.1 are the same ElementwiseAffine"),
        (
            [Autoregressive(shared, MADE(3)) for _ in range(2)],
            r"bijections.0.transformer and .*1.transformer .* Scaled",
        ),
        ([Autoregressive(Shift(), made) for _ in range(2)], r"bijections.0.conditioner and .*1.conditioner .* MADE"),
    ]:
        with pytest.raises(ArgumentError, match=f"{places}: create one instance for each"):
            Flow(Chain(layers))
    free = Shift()  # has nothing to store
    Flow(Chain([Autoregressive(free, MADE(3)), Autoregressive(free, MADE(3)), layer]))


def test_wrong_parts_of_an_autoregressive_layer_are_refused():
    for parts, message in [
        ((Affine, MADE(3, 2)), "transformer must be a Transformer; got the class Affine: pass an instance"),
        ((MADE(3, 2), Affine()), "transformer must be a Transformer; got MADE"),
        ((Affine(), MADE), "conditioner must be a Conditioner; got the class MADE: pass an instance"),
        ((type("Own", (Transformer,), {})(), MADE(3)), "Own must set num_parameters"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            Autoregressive(*parts)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            (Shift(), conditioner(lambda self, x, c=None: x.T.unsqueeze(-1))),
            r"parameters of shape \(5, 3, 1\) instead of",
        ),
        ((Shift(), conditioner(lambda self, x, c=None: x.unsqueeze(0))), r"instead of \(3, 1, 5\), \(features, parame"),
        (
            (transformer(lambda self, x, h: (x, 0 * x)), conditioner()),
            r"a log-determinant of shape \(3, 5\) instead of",
        ),
        (
            (transformer(lambda self, x, h: (x.sum(0), x.sum(0))), conditioner()),
            r"z of shape \(5,\) instead of \(3, 5\)",
        ),
    ],
)
def test_wrong_shapes_are_named_with_the_right_ones(parts, message):
    with pytest.raises(ArgumentError, match=rf"\.forward returned .*{message}"):
        Flow(Autoregressive(*parts))().log_prob(torch.zeros(5, 3))


def test_a_transformer_that_is_not_elementwise_is_named_in_its_inverse():
    apart = transformer(lambda self, x, h: (x + torch.arange(3.0)[:, None], 0 * x.sum(0)))
    flow = Flow(Autoregressive(apart, MADE(3)))
    flow().log_prob(torch.zeros(5, 3))
    message = r"forward returned z of shape \(3, 5\) instead of \(1, 5\), elementwise: what depends on the feature .* h"
    with pytest.raises(ArgumentError, match=message):
        flow().sample((5,))


def steps(*features, **options):
    def incremental(self, like, context=None):
        for chosen in features:
            yield Step(chosen, like.new_zeros(len(like[chosen]), 1, like.shape[1], **options))

    return conditioner(incremental=incremental)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([slice(0, 2)], r"leave out \[2\] and repeat \[\]"),
        ([slice(0, 2), slice(1, 3)], r"leave out \[\] and repeat \[1\]"),
        ([slice(0, 2), slice(1, 2)], r"leave out \[2\] and repeat \[1\]"),
        ([torch.tensor([0, 2]), torch.tensor([2])], r"leave out \[1\] and repeat \[2\]"),
        ([torch.tensor([0])], r"leave out \[1, 2\]"),
        ([], r"leave out \[0, 1, 2\]"),
    ],
)
def test_steps_must_name_every_feature_once(features, message):
    with pytest.raises(ArgumentError, match=f"must name each of the 3 features once: they {message}"):
        Flow(Autoregressive(Shift(), steps(*features)))().sample((5,))


@pytest.mark.parametrize(
    "features",
    [[slice(2, 3), slice(0, 2)], [slice(None)], [torch.tensor([2, 0]), slice(1, 2)], [slice(None, None, 2), 1]],
)
def test_steps_may_come_in_any_order(features):
    layer = Autoregressive(Shift(), steps(*(slice(f, f + 1) if isinstance(f, int) else f for f in features)))
    z = torch.randn(5, 3)
    assert torch.equal(layer.inverse(z)[0], z)


def test_wrong_steps_are_named():
    flat = conditioner(incremental=lambda self, like, c=None: iter([Step(slice(0, 3), like)]))
    with pytest.raises(ArgumentError, match=r"has parameters of shape \(3, 5\) instead of .* here \(3, 'P', 5\)"):
        Flow(Autoregressive(Shift(), flat))().sample((5,))
    whole = conditioner(incremental=lambda self, like, c=None: self(like, c))
    with pytest.raises(ArgumentError, match="incremental must yield Steps; got a Tensor"):
        Flow(Autoregressive(Shift(), whole))().sample((5,))
    with pytest.raises(ArgumentError, match=r"use slice\(2, 3\) instead of 2"):
        Step(2, torch.zeros(1, 5))
    with pytest.raises(SinuflowError, match="read it after the step was yielded"):
        Step(slice(0, 1), torch.zeros(1, 1, 5)).solution  # noqa: B018


@pytest.mark.parametrize("wrap", [lambda layer: layer, lambda layer: Chain([layer, ElementwiseAffine(3)])])
def test_wrong_shapes_of_a_bijection_are_named(wrap):
    cases = [
        ("transform", lambda self, x, c: (x.T, None), r"z of shape \(5, 3\) instead of \(3, 5\), \(features, rows\)"),
        ("transform", lambda self, x, c: (x, x[0, :, None]), r"a log-determinant of shape \(5, 1\) instead of \(5,\)"),
        ("invert", lambda self, z, c, o: Inversion.exact(z[:2], None), r"x of shape \(2, 5\) instead of \(3, 5\)"),
        ("invert", lambda self, z, c, o: Inversion.exact(z, z), r"a log-determinant of shape \(3, 5\) instead of"),
    ]
    for method, function, message in cases:
        flow = Flow(wrap(type("Own", (Roll,), {method: function})(3)))
        with pytest.raises(ArgumentError, match=rf"Own\.{method} returned {message}"):
            flow().log_prob(torch.zeros(5, 3)) if method == "transform" else flow().sample((5,))
    tensor = Flow(wrap(type("Own", (Roll,), {"transform": lambda self, x, c: x})(3)))
    with pytest.raises(ArgumentError, match=r"Own\.transform must return z and its log-determinant; got a Tensor"):
        tensor().log_prob(torch.zeros(5, 3))


@sinuflow.register(name="tests.Constant")
class Constant(Bijection):
    """Its log-determinant is a scalar."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.log_scale = nn.Parameter(torch.tensor(0.3))

    def transform(self, x, context):
        return self.log_scale.exp() * x, self.features * self.log_scale

    def invert(self, z, context, options):
        return Inversion.exact(z * (-self.log_scale).exp(), -self.features * self.log_scale)


def test_a_log_determinant_may_be_a_scalar():
    check_flow(Flow(Constant(2)))
    check_flow(Flow(Chain([Constant(2), Constant(2), ElementwiseAffine(2)])))
    assert Flow(Constant(2))().log_prob(torch.zeros(5, 2)).shape == (5,)


@pytest.mark.parametrize("features", [1, 2])
def test_wrong_shapes_of_a_base_are_named(features):
    base = type("Own", (StandardNormal,), {"log_prob": lambda self, z: -(z**2)})(features)
    flow = Flow(ElementwiseAffine(features), base)
    for call in (lambda: flow().log_prob(torch.zeros(5, features)), lambda: flow().rsample_and_log_prob((5,))):
        with pytest.raises(
            ArgumentError, match=rf"Own\.log_prob returned a log-density of shape \(5, {features}\) instead of \(5,\)"
        ):
            call()


def test_names_are_passed_by_keyword():
    with pytest.raises(ArgumentError, match=r"by keyword: @sinuflow\.register\(name='lab\.Roll'\)"):
        sinuflow.register("lab.Roll")


def test_missing_methods_are_named():
    x, h, own = torch.zeros(2, 5), torch.zeros(2, 1, 5), sinuflow.bijections.ColumnMap()
    for call, message in [
        (lambda: type("Own", (Bijection,), {})(2)(x.T), "Own must define transform"),
        (lambda: type("Own", (Bijection,), {})(2).inverse(x.T), "Own must define invert"),
        (lambda: type("Own", (Transformer,), {})()(x, h), "Own must define forward"),
        (lambda: type("Own", (Conditioner,), {})(2, 1)(x), "Own must define forward"),
        (lambda: type("Own", (Base,), {})(2).log_prob(x.T), "Own must define log_prob"),
        (lambda: type("Own", (Base,), {})(2).sample((5,)), "Own must define sample"),
        (lambda: own.value(x), "ColumnMap must define value"),
        (lambda: own.inverse_value(x), "ColumnMap must define inverse_value"),
        (lambda: own.log_derivative(x, x), "ColumnMap must define log_derivative"),
    ]:
        with pytest.raises(NotImplementedError, match=message):
            call()


def test_an_inverse_that_is_a_tuple_is_refused():
    layer = type("Own", (Roll,), {"invert": lambda self, z, context, options: (z, z.sum(0))})(3)
    for bijection in (layer, Chain([layer, ElementwiseAffine(3)])):
        with pytest.raises(ArgumentError, match=r"Own.invert must return an Inversion, such as .*; got a tuple"):
            Flow(bijection)().sample((2,))


def test_wrong_parts_are_blamed_and_not_rounding():
    off = transformer(
        lambda self, x, h: (x + h[:, 0], 0 * x.sum(0)),
        inverse=lambda self, z, h, options: Root.exact(z + 0.1, z * 0 + 1),
    )
    flow = Flow(Autoregressive(off, MADE(3)))
    with pytest.raises(
        InversionError, match=r"Own may be wrong: they leave a residual of 0.1 .*check_flow\(flow\)"
    ) as e:
        flow().sample((5,), certify="end-to-end")
    assert "leave out certify" not in str(e.value)

    class Unrecorded(Bijection):  # the arguments of a constructor with *args are unknown
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)

        def transform(self, x, context):
            return x, None

        def invert(self, z, context, options):
            return Inversion.exact(z + 0.1, z[0] * 0)

    with pytest.raises(InversionError, match="a component may be wrong"):
        Flow(Unrecorded(3))().sample((5,), certify="end-to-end")


@pytest.mark.parametrize("change", [lambda x: -x, lambda x: x.square(), lambda x: x.tanh()])
def test_transformers_that_do_not_increase_onto_the_reals_are_a_cause(change):
    own = transformer(lambda self, x, h: (change(x) + h[:, 0], 0 * x.sum(0)))
    with pytest.raises(InversionError, match=r"increases from R onto R \(sinuflow.testing.check_transformer\)"):
        Flow(Autoregressive(own, MADE(3)))().sample((50,))


def test_what_cannot_be_saved_is_known_before_training(tmp_path):
    class Own(Roll):
        pass

    x, options = torch.randn(20, 3), {"steps": 1, "progress": False, "device": "cpu"}
    with pytest.warns(
        UserWarning, match=r"cannot write the trained flow: .*Own is not registered; put @sinuflow.register"
    ):
        sinuflow.fit(Flow(Chain([Own(3), ElementwiseAffine(3)])), x, **options, checkpoint=tmp_path / "own")
    tied = Chain([ElementwiseAffine(3), ElementwiseAffine(3)])
    tied.bijections[1].mean = tied.bijections[0].mean
    with pytest.raises(StorageError, match="share memory; create"):
        sinuflow.fit(Flow(tied), x, **options, checkpoint=tmp_path / "tied")
    assert not (tmp_path / "tied").exists()
