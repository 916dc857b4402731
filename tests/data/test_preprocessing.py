"""Maps of columns: chosen by their values, reversible, with the right Jacobian."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow import DataError
from sinuflow.data import Column, Preprocessor
from sinuflow.data.formulas import Formula, Term
from sinuflow.data.inspect import inspect_codes, inspect_numbers
from sinuflow.data.lookups import Lookup
from sinuflow.data.sources import MemoryRows, seeded
from sinuflow.data.values import to_arrow

RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.normal(size=500)


def column_of(values, type_name="double", map_choice=None):
    return inspect_numbers("c", np.asarray(values, dtype=np.float64), type_name, map_choice=map_choice)


def test_values_that_differ_may_be_outside_of_the_sample():
    column = inspect_numbers("c", np.full(100, 2.5), "double", bounds=(2.5, 3.0))
    assert column.kind == "number"
    assert column.scale == 1


# ---------------------------------------------------------------- which map


def test_plain_numbers_are_standardised():
    column = column_of(3 + 2 * NORMAL)
    assert column.map == "linear"
    assert column.step == 0
    assert column.centre == pytest.approx(3, abs=0.3)
    assert column.scale == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (RANDOM.integers(0, 100, 500), 1.0),
        (RANDOM.integers(0, 50, 500) * 10, 10.0),
        (RANDOM.integers(0, 60, 500) / 10, 0.1),
        (np.float32(RANDOM.integers(0, 60, 500) / 100).astype(float), 0.01),
        (RANDOM.integers(0, 2, 500), 1.0),
    ],
    ids=["integers", "tens", "tenths", "hundredths in single precision", "zero and one"],
)
def test_grids_are_found(values, step):
    column = column_of(values)
    assert column.step == pytest.approx(step)
    assert column.rounded


def test_many_zeros_among_real_numbers_are_an_atom_and_no_grid():
    values = np.where(RANDOM.random(500) < 0.3, 0.0, NORMAL * math.pi)
    column = column_of(values)
    assert (column.step, column.cell, column.rounded) == (0, 0, False)
    assert column.atoms == (0.0,)
    assert column.masses == pytest.approx(((values == 0).mean(),))


def test_ties_without_a_grid_are_spread_over_their_gaps():
    values = np.repeat(NORMAL, 2)
    column = column_of(values)
    assert column.cell == column.step == pytest.approx(np.median(np.diff(np.unique(values))))
    assert not column.rounded
    assert column.atoms == ()
    assert column_of(np.append(NORMAL, NORMAL[:9])).cell == 0  # less than 2 % are repeated


@pytest.mark.parametrize("decades", [4, 9])
def test_few_positive_values_are_smaller_than_the_cells_of_ties(decades):
    values = np.repeat(10 ** np.linspace(-decades, decades, 600), 2)
    column = column_of(values)
    assert column.map == "log"
    assert column.cell == (np.quantile(values, 0.01) if decades == 4 else 0)
    assert column.cell < 0.02 * np.median(np.diff(np.unique(values)))
    preprocessor = Preprocessor([column])
    x = torch.from_numpy(values)[:, None]
    assert preprocessor.locate(x)[1].log_measure.min() > -50
    preprocessor.initialize(x, seeded(0))
    drawn = preprocessor.inverse(torch.randn(5000, 1, generator=seeded(1))).numpy()
    assert np.quantile(np.log10(drawn), [0.1, 0.25, 0.5, 0.75]) == pytest.approx(
        np.quantile(np.log10(values), [0.1, 0.25, 0.5, 0.75]), abs=0.7
    )
    assert (drawn == values.min()).mean() < 0.02


def test_heavy_tails_take_a_log_and_signs_do_not():
    assert column_of(np.exp(1.5 * NORMAL)).map == "log"
    assert column_of(np.floor(np.exp(1.5 * NORMAL + 3))).map == "log"
    assert column_of(NORMAL * np.exp(1.5 * np.abs(NORMAL))).map == "linear"


def test_shares_take_a_logit():
    assert column_of(1 / (1 + np.exp(-3 * NORMAL))).map == "logit"
    assert column_of(RANDOM.random(500) * 0.5 + 0.25).map == "linear"


def test_wishes_are_followed_and_impossible_ones_refused():
    assert column_of(np.exp(NORMAL), map_choice="linear").map == "linear"
    assert column_of(NORMAL, map_choice="logit").map == "logit"
    assert column_of(NORMAL**2 + 0.1, map_choice="log").map == "log"
    with pytest.raises(DataError, match="cannot take a log"):
        column_of(NORMAL, map_choice="log")


def test_a_constant_column_keeps_its_value():
    column = column_of([3.0] * 20, "int64")
    assert column.kind == "constant"
    assert column.categories == (3,)


@pytest.mark.parametrize("value", [1e30, -1e25, 1e12])
def test_an_absurd_value_is_an_atom_and_does_not_blur_the_others(value):
    values = NORMAL.copy()
    values[17] = value
    column = column_of(values)
    assert column.atoms == (value,)
    assert column.masses == (1 / 500,)
    usual = column_of(np.delete(NORMAL, 17))
    assert (column.centre, column.scale) == (usual.centre, usual.scale)


def test_heavy_but_honest_tails_are_continuous():
    for values in (RANDOM.standard_cauchy(5000), np.exp(4 * RANDOM.normal(size=5000))):
        assert column_of(values).atoms == ()
    assert column_of(np.where(RANDOM.random(500) < 0.01, 1000.0, 0.0)).discrete


# ---------------------------------------------------------------- the maps themselves


def spread(preprocessor, rows, seed=0):
    """The flow's input at random points of the rows' cells."""
    return preprocessor.draw(rows, seeded(seed))[0]


COLUMNS = {
    "linear": (column_of(3 + 2 * NORMAL), 3 + 2 * NORMAL),
    "log": (column_of(np.exp(1.5 * NORMAL)), np.exp(1.5 * NORMAL)),
    "logit": (column_of(1 / (1 + np.exp(-3 * NORMAL))), 1 / (1 + np.exp(-3 * NORMAL))),
    "wide logit": (column_of(NORMAL * 30 - 7, map_choice="logit"), NORMAL * 30 - 7),
    "heavy": (column_of(RANDOM.standard_cauchy(500)), RANDOM.standard_cauchy(500)),
    "integer": (column_of(RANDOM.integers(-5, 90, 500), "int64"), RANDOM.integers(-5, 90, 500)),
    "tenths": (column_of(RANDOM.integers(0, 60, 500) / 10), RANDOM.integers(0, 60, 500) / 10),
    "counts": (column_of(np.floor(np.exp(NORMAL + 2))), np.floor(np.exp(NORMAL + 2))),
    "category": (inspect_codes("c", RANDOM.integers(0, 4, 500) * 1.0, ("a", "b", "c", "d"), "string", "feature"), None),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_jacobian_is_that_of_autograd(name):
    column, values = COLUMNS[name]
    x = RANDOM.integers(0, 4, 20) * 1.0 if values is None else np.asarray(values[:20], dtype=float)
    x = torch.from_numpy(np.clip(x, column.low, column.high)).unsqueeze(0).requires_grad_()
    y, ladj = Preprocessor([column]).normal_scores(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(ladj.detach(), slope.log(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["linear", "log", "logit", "wide logit", "heavy"])
def test_real_columns_come_back(name):
    column, values = COLUMNS[name]
    x = torch.from_numpy(np.clip(values, column.low + 1e-12, column.high)).unsqueeze(1)
    preprocessor = Preprocessor([column])
    levels, cells = preprocessor.locate(x)
    assert levels.codes.shape == (500, 0)
    assert not bool(cells.width.any())
    torch.testing.assert_close(preprocessor.inverse(cells.start.mT), x, rtol=1e-9, atol=1e-9)


@given(
    st.lists(st.integers(-1000, 1000), min_size=20, max_size=60).filter(lambda v: len(set(v)) > 1), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_integers_come_back_exactly_from_anywhere_in_their_cells(values, seed):
    x = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    preprocessor = Preprocessor([column_of(values, "int64")])
    assert torch.equal(preprocessor.inverse(spread(preprocessor, x, seed)), x)


@pytest.mark.parametrize("name", ["integer", "tenths", "counts", "category"])
def test_grids_come_back_exactly(name):
    column, values = COLUMNS[name]
    x = np.arange(4.0) if values is None else np.unique(np.clip(values, column.low, column.high))
    rows = torch.from_numpy(np.asarray(x, dtype=float)).unsqueeze(1)
    preprocessor = Preprocessor([column])
    torch.testing.assert_close(preprocessor.inverse(spread(preprocessor, rows)), rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("map_choice", ["linear", "log", "logit"])
def test_integers_stay_within_what_was_seen_whatever_their_map(map_choice):
    values = np.arange(11).repeat(3) * 1.0
    preprocessor = Preprocessor([column_of(values, "int64", map_choice)])
    rows = torch.from_numpy(np.arange(11.0)).unsqueeze(1)
    assert torch.equal(preprocessor.inverse(spread(preprocessor, rows)), rows)
    far = preprocessor.inverse(torch.tensor([[-90.0], [90.0]], dtype=torch.float64))
    assert far.flatten().tolist() == [0.0, 10.0]


def test_steps_larger_than_the_lowest_value_can_take_a_log():
    values = 1 + 100 * np.floor(np.exp(1.2 * NORMAL + 1))
    column = column_of(values, "int64")
    assert column.map == "log"
    preprocessor = Preprocessor([column])
    rest = values[~np.isin(values, column.atoms)]
    assert preprocessor.normal_scores(torch.from_numpy(rest - 49.9).unsqueeze(0))[0].isfinite().all()
    rows = torch.from_numpy(np.unique(values)).unsqueeze(1)
    assert torch.equal(preprocessor.inverse(spread(preprocessor, rows)), rows)


@pytest.mark.parametrize(
    ("origin", "step", "digits"), [(0.0, 0.125, 3), (0.123, 1.0, 3), (0.125, 0.5, 3), (2.0, 0.1, 1)]
)
def test_decimals_are_given_back_as_they_were(origin, step, digits):
    values = origin + step * RANDOM.integers(0, 20, 300)
    column = column_of(values)
    assert column.digits == digits
    drawn = to_arrow(column, values + 1e-9).to_numpy()
    np.testing.assert_array_equal(drawn, np.round(values, digits))


def test_samples_from_beyond_stay_on_the_grid():
    column, _ = COLUMNS["category"]
    back = Preprocessor([column]).inverse(torch.tensor([[-50.0], [50.0]], dtype=torch.float64))
    assert back.flatten().tolist() == [0.0, 3.0]


def test_values_that_are_far_away_are_drawn_in():
    column, _ = COLUMNS["linear"]
    y, ladj = Preprocessor([column]).normal_scores(torch.tensor([[1e5, 1e30]], dtype=torch.float64))
    assert y.abs().max() < 120
    assert ladj.isfinite().all()


def test_a_batch_has_fresh_points_all_over_the_cells():
    column, _ = COLUMNS["category"]
    preprocessor = Preprocessor([column])
    cells = preprocessor.prepare(torch.full((10_000, 1), 2.0, dtype=torch.float64))
    first, again, other = (preprocessor.encode(cells, None, seeded(seed)) for seed in (1, 1, 2))
    assert first.x.dtype == torch.float32
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    share = torch.special.ndtr(first.x.double()) - sum(column.masses[:2])
    assert float(share.min()) == pytest.approx(0, abs=1e-3)
    assert float(share.max()) == pytest.approx(column.masses[2], abs=1e-3)
    assert float(share.mean()) == pytest.approx(column.masses[2] / 2, rel=0.03)


def test_context_is_standardised_or_one_hot():
    columns = [
        Column("x", "number", "double"),
        Column("a", "number", "double", "context", centre=1.0, scale=2.0),
        Column("b", "category", "string", "context", step=1.0, categories=("u", "v", "w")),
    ]
    preprocessor = Preprocessor(columns)
    assert preprocessor.context_width == 4
    context = preprocessor.context(torch.tensor([[5.0, 2.0]], dtype=torch.float64))
    assert context.tolist() == [[2.0, 0.0, 0.0, 1.0]]


def test_missing_context_has_a_flag():
    columns = [
        Column("x", "number", "double"),
        Column("a", "number", "double", "context", centre=1.0, scale=2.0, rows=50, missing=0.2),
        Column("b", "category", "string", "context", step=1.0, high=1.0, categories=("u", "v"), rows=50, missing=0.1,
               atoms=(0.0, 1.0), masses=(0.4, 0.5), discrete=True),
        Column("c", "number", "double", "context", rows=50),
    ]  # fmt: skip
    preprocessor = Preprocessor(columns)
    assert preprocessor.context_width == 5
    rows = torch.tensor([[5.0, 1.0, 0.3], [math.nan, math.nan, 0.0], [3.0, math.inf, -0.2]], dtype=torch.float64)
    assert preprocessor.context(rows).tolist() == [
        [2.0, 0.0, 0.0, 1.0, 0.3],
        [0.0, 1.0, 0.0, 0.0, 0.0],  # a missing category is none of them
        [1.0, 0.0, 0.0, 0.0, -0.2],  # and so is one that was never seen
    ]


# ---------------------------------------------------------------- restored columns

TOTAL = Formula("total", (Term(1.0, ("a",)), Term(1.0, ("b",))))
LABEL = Lookup("label", ("total",), (False,), ((0.0, 3.0, 5.0),), (1.0, 0.0, 1.0))


def with_restored():
    """Numbers a and b, their sum, and a label of the sum: each is restored after what it comes from."""
    number = Column("a", "number", "double", low=0.0, high=9.0, rows=98)
    label = inspect_codes("label", 1.0 * (np.arange(98) % 3 > 0), ("odd", "even"), "string", "feature")
    return Preprocessor([
        replace(label, relation=LABEL), replace(number, name="total", relation=TOTAL, high=20.0), number,
        replace(number, name="b"),
    ])  # fmt: skip


def test_columns_are_restored_in_the_order_of_their_relations():
    preprocessor = with_restored()
    assert [c.name for c in preprocessor.features] == ["a", "b"]
    assert [c.name for c in preprocessor.restored] == ["total", "label"]
    numbers = {"a": np.array([1.0, 2.0, 0.0, 4.0]), "b": np.array([2.0, 3.0, 0.0, 4.0])}
    preprocessor.restore(numbers)
    assert numbers["total"].tolist() == [3.0, 5.0, 0.0, 8.0]
    # 8 never occurred: without missing values, its label is the most frequent one.
    assert numbers["label"].tolist() == [0.0, 1.0, 1.0, 1.0]


def test_rows_that_contradict_a_relation_are_unlikely():
    numbers = {
        "a": np.array([1.0, 1.0, 1.0, 4.0]), "b": np.array([2.0, 2.0, 2.0, 4.0]),
        "total": np.array([3.0, 4.0, 3.0, 8.0]), "label": np.array([0.0, 1.0, 1.0, 0.0]),
    }  # fmt: skip
    usual, rare = math.log1p(-1 / 100), -math.log(100)
    expected = [
        2 * usual,
        rare
        - math.log(20)
        + usual,  # the total, spread over its range; a label of an unknown total contradicts nothing
        usual + rare,  # the label
        2 * usual,
    ]
    np.testing.assert_allclose(with_restored().log_relations(numbers), expected)
    plain = Preprocessor([Column("a", "number", "double", rows=98)])
    assert plain.log_relations({"a": np.zeros(3)}).tolist() == [0.0] * 3


def test_relations_in_a_circle_are_refused():
    a = Column("a", "number", "double", rows=98, relation=Formula("a", (Term(1.0, ("b",)),)))
    b = Column("b", "number", "double", rows=98, relation=Formula("b", (Term(1.0, ("a",)),)))
    with pytest.raises(ValueError, match="restored from each other"):
        Preprocessor([a, b, Column("x", "number", "double", rows=98)])


def test_it_survives_json():
    columns = [replace(column, name=name) for name, (column, _) in COLUMNS.items()]
    preprocessor = Preprocessor(columns)
    preprocessor.whitening.mean.normal_()
    preprocessor.whitening.factor.mul_(2)
    again = Preprocessor.from_dict(json.loads(json.dumps(preprocessor.as_dict())), preprocessor.tensors())
    assert again.columns == columns
    x = torch.tensor([[max(column.low, 0.1) for column, _ in COLUMNS.values()]], dtype=torch.float64)
    assert torch.equal(again.prepare(x), preprocessor.prepare(x))
    z = torch.randn(9, preprocessor.size, dtype=torch.float64)
    z[:, : len(preprocessor.level_features)] = 1
    assert 0 < len(preprocessor.level_features) < preprocessor.size
    assert torch.equal(again.inverse(z), preprocessor.inverse(z))


def test_buffers_stay_float64_and_copies_move():
    preprocessor = Preprocessor([COLUMNS["log"][0]]).float()
    assert {t.dtype for t in preprocessor.buffers()} == {torch.float64, torch.bool}
    other = preprocessor.on(torch.device("meta"))
    assert other.whitening.mean.is_meta
    assert other is preprocessor.on(torch.device("meta"))
    assert preprocessor.on(torch.device("cpu")) is preprocessor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_rows_are_encoded_to_the_same_values():
    preprocessor = Preprocessor([replace(column, name=name) for name, (column, _) in COLUMNS.items()])
    x = torch.tensor([[column.high for column, _ in COLUMNS.values()]] * 9, dtype=torch.float64)
    here, there = (preprocessor.encode(x.to(device), None, seeded(0)).x for device in ("cpu", "cuda"))
    torch.testing.assert_close(there.cpu(), here)
    source = MemoryRows(x, encode=preprocessor.encode).to(torch.device("cuda"))
    take = source.taker()
    rows = source.start_epoch(0, 0)
    first = take(rows).x.clone()
    assert first.device == rows.device
    source.start_epoch(1, 0)
    assert not torch.equal(take(rows).x, first)


def test_columns_with_the_same_map_share_a_module():
    columns = [replace(COLUMNS["log"][0], name=name) for name in "abc"] + [COLUMNS["linear"][0]]
    columns[1] = replace(columns[1], knots=(-1.0, 0.0, 2.0), scores=(-1.5, 0.0, 1.0))
    preprocessor = Preprocessor(columns)
    assert [type(layer).__name__ for layer in preprocessor.maps] == [
        "SelectedColumns", "Standardize", "CompressTails", "SelectedColumns",
    ]  # fmt: skip
    x = torch.rand(4, 5, dtype=torch.float64) + 0.1
    both = preprocessor.normal_scores(x)
    for i, column in enumerate(columns):
        single = Preprocessor([column]).normal_scores(x[i : i + 1])
        torch.testing.assert_close([t[i : i + 1] for t in both], list(single), rtol=1e-13, atol=1e-13)
