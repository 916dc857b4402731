"""Column maps: invertible, increasing, with the derivative of autograd; and a user's own map in a table model."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import sinuflow
from sinuflow import ArgumentError, StorageError, fit_table, registry
from sinuflow.bijections.columns import (
    ColumnMap,
    CompressTails,
    Log,
    Logit,
    SelectedColumns,
    Standardize,
    column_map_mistake,
    make_column_map,
)

QUICK = {"steps": 20, "architecture": {"hidden": (8,), "blocks": 1}, "progress": False, "device": "cpu"}
REAL = st.floats(-1e3, 1e3)
POSITIVE = st.floats(1e-2, 1e2)


@registry.register
class PositivePower(ColumnMap):
    """x ↦ x^exponent for x > 0."""

    def __init__(self, exponent):
        super().__init__(exponent=exponent)

    def value(self, x):
        return x**self.exponent

    def inverse_value(self, y):
        return y ** (1 / self.exponent)

    def log_derivative(self, x, y):
        return self.exponent.log() + (self.exponent - 1) * x.log()

    @classmethod
    def fit(cls, values, low, high, step):
        if low <= 0:
            raise ArgumentError("it holds values that are not above 0")
        return cls(0.5)


@registry.register(name="tests.Cube")
class Cube(ColumnMap):
    """x ↦ x³ + x, without arguments, and with the inverse of a solver."""

    def value(self, x):
        return x**3 + x

    def inverse_value(self, y):
        u = (y / 2 + (y**2 / 4 + 1 / 27).sqrt()).pow(1 / 3)
        return u - 1 / (3 * u)

    def log_derivative(self, x, y):
        return (3 * x**2 + 1).log()


@st.composite
def maps(draw):
    """A map of one column, and values within its domain, in increasing order."""
    kind = draw(st.sampled_from(["log", "logit", "standardize", "tails", "power"]))
    inside = sorted(draw(st.lists(st.floats(1e-3, 1 - 1e-3), min_size=2, max_size=20, unique_by=lambda v: round(v, 6))))
    share = torch.tensor([inside], dtype=torch.float64)
    if kind == "log":
        offset = draw(REAL)
        return Log(offset), offset + 100 * share
    if kind == "logit":
        lower, width = draw(REAL), draw(POSITIVE)
        return Logit(lower, lower + width), lower + width * share
    if kind == "standardize":
        return Standardize(centre=draw(REAL), scale=draw(POSITIVE)), 2000 * share - 1000
    if kind == "tails":
        return CompressTails(width=draw(POSITIVE)), 2000 * share - 1000
    return PositivePower(draw(st.floats(0.2, 3))), 100 * share


@given(maps())
@settings(max_examples=200, deadline=None)
def test_maps_are_invertible_and_increasing_with_the_right_jacobian(case):
    column_map, x = case
    x = x.mT.requires_grad_()
    y, ladj = column_map(x)
    assert bool((y.diff(dim=0) > 0).all())
    (derivative,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(ladj, derivative.log().squeeze(1), rtol=1e-9, atol=1e-9)
    back, back_ladj = column_map.inverse(y.detach())
    torch.testing.assert_close(back, x.detach(), rtol=1e-9, atol=1e-9 * float(x.detach().abs().max() + 1))
    torch.testing.assert_close(back_ladj, -ladj.detach(), rtol=1e-6, atol=1e-6)


def test_every_column_has_its_own_arguments_and_others_are_unchanged():
    x = torch.rand(7, 3, dtype=torch.float64) + 1
    layer = SelectedColumns(3, [0, 2], Log([0.0, 0.5]))
    y, ladj = layer(x)
    torch.testing.assert_close(y, torch.stack([x[:, 0].log(), x[:, 1], (x[:, 2] - 0.5).log()], dim=1))
    torch.testing.assert_close(ladj, -y[:, 0] - y[:, 2])
    torch.testing.assert_close(layer.inverse(y)[0], x)


def test_maps_describe_themselves():
    layer = SelectedColumns(3, [0, 2], Log([0.0, 0.5]))
    again = registry.build(registry.Spec.from_json(layer.spec().to_json()))
    x = torch.rand(7, 3, dtype=torch.float64) + 1
    assert torch.equal(again(x)[0], layer(x)[0])


def test_dtypes_of_the_flow_do_not_reach_the_buffers():
    layer = Standardize(centre=1e9 + 0.125, scale=1.0)
    y, _ = layer.float()(torch.tensor([[1e9]], dtype=torch.float64))
    assert y.item() == -0.125


def frame(rows=60):
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {"a": np.exp(random.normal(size=rows)), "b": random.normal(size=rows), "c": random.gamma(2, size=rows)}
    )


@pytest.mark.parametrize(
    "map_choice", [PositivePower, PositivePower(0.3), Cube, Cube()], ids=["class", "instance", "cube", "cube instance"]
)
def test_a_users_map_trains_samples_saves_and_loads(map_choice, tmp_path, monkeypatch):
    model = fit_table(frame(), maps={"a": map_choice, "c": map_choice}, **QUICK)
    scores = model.log_prob(frame())
    assert np.isfinite(scores).all()
    assert model.sample(5, seed=0).num_rows == 5
    path = tmp_path / "m.safetensors"
    model.save(path)
    again = sinuflow.load(path)
    np.testing.assert_array_equal(again.log_prob(frame()), scores)
    assert again.sample(5, seed=0).equals(model.sample(5, seed=0))
    name = "tests.Cube" if "Cube" in str(map_choice) else "PositivePower"
    assert name in [column.map for column in again.preprocessor.columns]
    assert name in again.preprocessor.columns[0].describe()
    monkeypatch.delitem(registry._CLASSES, name)
    with pytest.raises(StorageError, match=r"is not registered: import the module that defines it"):
        sinuflow.load(path)


def test_the_density_of_a_users_map_is_in_the_columns_units():
    values = pd.DataFrame({"x": np.random.default_rng(1).gamma(4, size=300)})
    model = fit_table(values, maps={"x": PositivePower(0.5)}, **QUICK)
    grid = np.linspace(1e-6, 60, 60_001)
    assert np.trapezoid(np.exp(model.log_prob(pd.DataFrame({"x": grid}))), grid) == pytest.approx(1, abs=2e-3)


def test_a_users_map_can_refuse_a_column():
    with pytest.raises(sinuflow.DataError, match="column 'b' cannot take a PositivePower: it holds values that are"):
        fit_table(frame(), maps={"b": PositivePower}, **QUICK)
    number = type("Own", (PositivePower,), {"fit": classmethod(lambda cls, values, low, high, step: 0.5)})
    with pytest.raises(
        sinuflow.DataError, match="cannot take a Own: what its fit returns must be a ColumnMap; got flo"
    ):
        fit_table(frame(), maps={"b": number}, **QUICK)
    with pytest.raises(
        sinuflow.DataError, match=r"column 'b' cannot take the map 'PositivePower': value is NaN .* at -"
    ):
        fit_table(frame(), maps={"b": PositivePower(0.5)}, **QUICK)


def mistaken(**methods):
    return registry.register(type("Mistaken", (PositivePower,), {"__module__": __name__, **methods}))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"value": lambda self, x: -x}, "value must increase, but is -"),
        ({"value": lambda self, x: (x - 1).square()}, "value must increase"),
        ({"inverse_value": lambda self, y: y}, r"inverse_value\(value\(x\)\) is "),
        ({"inverse_value": lambda self, y: y.square() + 0.01}, r"inverse_value\(value\(x\)\) is "),
        (
            {"log_derivative": lambda self, x, y: -y},
            "log_derivative is .*, which differs from finite differences of value",
        ),
        ({"log_derivative": lambda self, x, y: -0.5 * x.log()}, "log_derivative is "),
        ({"value": lambda self, x: x.sqrt()[0]}, "value returns torch.float64 of shape"),
        ({"inverse_value": lambda self, y: y[9]}, "it raises IndexError.*index 9 is out of bounds"),
    ],
)
def test_a_wrong_map_is_refused_with_the_name_of_its_column(methods, message):
    wrong = mistaken(**methods)
    for map_choice in (wrong, wrong(0.5)):
        with pytest.raises(sinuflow.DataError, match=f"column 'a' cannot take the map 'Mistaken': {message}"):
            fit_table(frame(), maps={"a": map_choice}, **QUICK)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_correct_maps_pass_at_any_scale(scale):
    values = torch.cat([torch.logspace(-8, 3, 3000, dtype=torch.float64), torch.zeros(1)]) * scale
    for kind in (Log(-1e-8 * scale), Logit(-1e-9 * scale, 1001 * scale), CompressTails(width=scale)):
        spec = kind.spec()
        arguments = spec.arguments or {"width": scale}
        assert column_map_mistake(spec.name, arguments, values) is None
    assert column_map_mistake("log", {"offset": 0.0}, 1.7e18 + values) is None


def test_wishes_that_are_no_map_are_refused():
    class NeedsNumbers(ColumnMap):
        def __init__(self, exponent):
            super().__init__(exponent=exponent)

    for map_choice, message in [
        (NeedsNumbers, r"take a NeedsNumbers: pass an instance, NeedsNumbers\(...\), or define fit"),
        (torch.log, "pass a name, or a ColumnMap or its class"),
        (PositivePower([0.5, 0.6]), "its arguments must be single numbers"),
    ]:
        with pytest.raises(sinuflow.DataError, match=f"column 'a' cannot .*{message}"):
            fit_table(frame(), maps={"a": map_choice}, **QUICK)


def test_only_column_maps_are_built_from_files():
    model = fit_table(frame(), maps={"a": PositivePower(0.5)}, **QUICK)
    stored = copy.deepcopy(model.preprocessor.as_dict())
    for name, arguments, message in (
        ("ElementwiseAffine", {"features": 10**9}, "is not a column map"),
        ("PositivePower", {"colour": 1.0}, "does not take its stored arguments"),
        ("Standardize", {"value": 1.0}, "does not take its stored arguments"),
        ("Standardize", {"scale": 0.0}, "scale must be positive"),
        ("CompressTails", {"width": -1.0}, "width must be positive"),
        ("nonsense", {}, "is not registered"),
    ):
        stored["columns"][0] |= {"map": name, "arguments": arguments}
        with pytest.raises(StorageError, match=message):
            type(model.preprocessor).from_dict(stored, model.preprocessor.tensors())
    with pytest.raises(StorageError, match="lower bound of a logit"):
        make_column_map("logit", {"lower": 1.0, "upper": 1.0})


def test_a_run_is_not_resumed_with_other_arguments_of_a_users_map(tmp_path):
    fit_table(frame(), maps={"a": PositivePower(0.5)}, **QUICK, checkpoint=tmp_path)
    fit_table(frame(), maps={"a": PositivePower(0.5)}, **QUICK, checkpoint=tmp_path, resume=True)
    with pytest.raises(sinuflow.TrainingError, match="other data"):
        fit_table(frame(), maps={"a": PositivePower(0.4)}, **QUICK, checkpoint=tmp_path, resume=True)


def test_only_models_that_version_0_1_0_could_make_have_its_format(tmp_path):
    def version(model):
        model.save(tmp_path / "m.safetensors")
        with safe_open(tmp_path / "m.safetensors", "pt") as file:
            return file.metadata()["format_version"]

    old = sinuflow.load(Path(__file__).parents[1] / "data" / "0.1.0" / "table.safetensors")
    assert version(old) == "1"
    assert sinuflow.load(tmp_path / "m.safetensors").preprocessor.as_dict() == old.preprocessor.as_dict()
    for maps in ({}, {"a": "log"}, {"a": PositivePower(0.5)}):
        assert version(fit_table(frame(), maps=maps, **QUICK)) == "2"  # it has cells
