"""The search for exact relations: what it must find, and what it must not."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow.data.find_relations import find_relations
from sinuflow.data.relations import Relation

Table = dict[str, np.ndarray]
ROWS = 600


def search(table: Table, categories: tuple[str, ...] = ()) -> list[Relation]:
    """The relations, checked to hold and to restore every target in their order."""
    numbers = np.stack([np.asarray(column, dtype=float) for column in table.values()], axis=1)
    relations = find_relations(numbers, list(table), categories)
    restored = {name: np.asarray(column, dtype=float) for name, column in table.items()}
    for relation in relations:
        restored[relation.target] = np.full(len(numbers), np.inf)
    for relation in relations:
        restored[relation.target] = relation.predict(restored)
        np.testing.assert_allclose(restored[relation.target], table[relation.target], rtol=1e-6, atol=1e-9)
        assert relation.holds(table).all()
    return relations


def descriptions(table: Table, categories: tuple[str, ...] = ()) -> list[str]:
    return [relation.describe() for relation in search(table, categories)]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_category_is_restored_from_its_number(random: np.random.Generator) -> None:
    years = random.integers(1, 17, ROWS)
    assert descriptions(
        {"years": years, "degree": (years * 7) % 16, "age": random.integers(17, 90, ROWS)}, ("degree",)
    ) == ["degree is determined by years"]


def test_a_number_is_restored_from_the_category_that_determines_it(random: np.random.Generator) -> None:
    country = random.integers(0, 20, ROWS)
    assert descriptions({"rate": np.array([5, 7, 19, 20])[country % 4] / 100, "country": country}, ("country",)) == [
        "rate is determined by country"
    ]


def test_missing_values_can_be_looked_up(random: np.random.Generator) -> None:
    group = random.integers(0, 5, ROWS).astype(float)
    table = {"group": np.where(group == 4, np.nan, group), "level": np.array([7, np.nan, 8, 8, 9])[group.astype(int)]}
    assert descriptions(table) == ["level is determined by group"]


def test_two_columns_determine_a_third(random: np.random.Generator) -> None:
    a, b = random.integers(0, 4, (2, ROWS))
    table = {"fare": np.array([3, 9, 4, 1, 5, 2, 6, 5, 3, 5, 8, 7, 9, 7, 1, 3])[4 * a + b], "a": a, "b": b}
    assert descriptions(table, ("a", "b")) == ["fare is determined by a and b"]


def test_sums_and_percentages(random: np.random.Generator) -> None:
    parts = random.integers(1, 5000, (3, ROWS))
    total = parts.sum(axis=0)
    table = {f"p{i}": np.round(100 * part / total, 4) for i, part in enumerate(parts)}
    found = descriptions({**table, "total": total, **{f"n{i}": part for i, part in enumerate(parts)}})
    assert len(found) == 4
    assert {f"p{i} = 100 * n{i} / total, rounded to 4 decimals" for i in range(3)} <= set(found)


def test_price_times_quantity_is_removed_once(random: np.random.Generator) -> None:
    price, quantity = np.round(random.gamma(2, 10, ROWS) + 1, 2), random.integers(1, 20, ROWS)
    assert descriptions({"price": price, "total": np.round(price * quantity, 2), "quantity": quantity}) == [
        "total = quantity * price"
    ]


def test_units_are_converted(random: np.random.Generator) -> None:
    celsius = np.round(random.normal(15, 8, ROWS), 1)
    miles = random.gamma(2, 50, ROWS)
    found = descriptions({"F": np.round(1.8 * celsius + 32, 2), "C": celsius, "miles": miles, "km": 1.609344 * miles})
    assert found == ["km = 1.609344 * miles", "F = 1.8 * C + 32, rounded to 2 decimals"]


def test_a_coefficient_is_found_through_the_rounding(random: np.random.Generator) -> None:
    fahrenheit = random.integers(-20, 110, ROWS)
    (found,) = search({"C": np.round((fahrenheit - 32) * 5 / 9, 1), "F": fahrenheit})
    assert found.target == "C"


def test_a_rounded_mean_of_columns(random: np.random.Generator) -> None:
    a, b, c = random.integers(0, 101, (3, ROWS))
    (found,) = search({"mean": np.round((a + b + c) / 3, 2), "a": a, "b": b, "c": c})
    assert found.target == "mean"
    assert set(found.sources) == {"a", "b", "c"}


@pytest.mark.parametrize("up", [False, True])
def test_ties_are_restored_as_the_table_rounds_them(random: np.random.Generator, up: bool) -> None:
    part, total = random.integers(0, 200, ROWS), random.integers(1, 10, ROWS) * 40
    percent = 100 * part / total
    table = {"percent": np.floor(percent + 0.5) if up else np.round(percent), "part": part, "total": total}
    (found,) = search(table)
    np.testing.assert_array_equal(found.predict(table), table["percent"])


def test_float32_storage(random: np.random.Generator) -> None:
    a, b = random.gamma(2, 1, (2, ROWS)).astype(np.float32)
    found = descriptions({"a": a, "b": b, "ratio": a / b, "sum": a + b, "scaled": 3 * a})
    assert len(found) == 3


def test_clock_times(random: np.random.Generator) -> None:
    planned, delay = random.integers(0, 1440, ROWS), random.integers(-30, 600, ROWS)
    actual = (planned + delay) % 1440
    hour, minute = planned // 60, planned % 60
    cancelled = random.random(ROWS) < 0.05
    table = {
        "hour": hour,
        "minute": minute,
        "planned": 100 * hour + minute,
        "actual": 100 * (actual // 60) + actual % 60,
        "delay": np.where(cancelled, np.nan, delay),
        "air": np.where(cancelled, np.nan, random.normal(size=ROWS)),
    }
    found = search(table)
    assert [relation.describe() for relation in found] == [
        "planned = 100 * hour + minute",
        "delay = (minutes(actual) - minutes(planned)) mod 1440",
    ]
    assert getattr(found[1], "missing_with", None) == "air"


def test_dates(random: np.random.Generator) -> None:
    days = np.sort(random.integers(10_000, 13_000, ROWS))
    date = days.astype("datetime64[D]")
    month = date.astype("datetime64[M]")
    hour = random.integers(0, 24, ROWS)
    table = {
        "counter": 24 * days + hour - 1000,
        "year": date.astype("datetime64[Y]").astype(int) + 1970,
        "month": month.astype(int) % 12 + 1,
        "day": (date - month).astype(int) + 1,
        "hour": hour,
        "weekday": (days + 3) % 7,
    }
    assert descriptions(table) == [
        "counter = 24 * days(year, month, day) + hour - 1000",
        "weekday = (days(year, month, day) + 3) mod 7",
    ]


def test_one_hot_columns(random: np.random.Generator) -> None:
    level = random.integers(0, 4, ROWS)
    (found,) = search({f"is{i}": level == i for i in range(4)})
    assert len(found.sources) == 3


def test_one_wrong_row_or_one_missing_value_refutes_a_relation(random: np.random.Generator) -> None:
    a, b = random.integers(0, 100_000, (2, 5000)).astype(float)
    level = random.integers(0, 5, 5000).astype(float)
    for wrong in (-7.0, -1.0, 1.0, np.nan):
        table = {"a": a, "b": b, "sum": a + b, "scaled": 0.5 * a, "level": level, "copy": level % 3}
        for row, name in enumerate(("sum", "scaled", "copy"), 2500):
            table[name][row] += wrong
        assert descriptions(table) == []


def test_rare_values_are_no_evidence(random: np.random.Generator) -> None:
    rare = np.zeros((40, 500))
    rare[:, :2] = 1  # the same two rows in every column
    assert find_relations(rare.T, [str(i) for i in range(40)]) == []


def test_tables_without_anything_to_find() -> None:
    assert find_relations(np.empty((0, 2)), ["a", "b"]) == []
    assert find_relations(np.full((50, 2), np.nan), ["a", "b"]) == []
    assert find_relations(np.ones((50, 2)), ["a", "b"]) == []
    assert find_relations(np.array([[np.inf, 1.0], [2.0, 3.0]] * 50), ["a", "b"]) == []


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 10, 20, 50, 100, 200]), st.integers(1, 8))
def test_independent_columns_have_no_relation(seed: int, rows: int, width: int) -> None:
    random = np.random.default_rng(seed)
    makers = [
        lambda: random.normal(size=rows),
        lambda: random.normal(size=rows).astype(np.float32),
        lambda: random.integers(0, random.integers(2, 30), rows),
        lambda: np.round(random.gamma(2, 10, rows), 1),
        lambda: random.random(rows) < 0.05,
        lambda: np.where(random.random(rows) < 0.3, np.nan, random.integers(0, 5, rows)),
        lambda: 100 * random.integers(0, 24, rows) + random.integers(0, 60, rows),
        lambda: np.sort(random.integers(1, 13, rows)),
    ]
    table = {f"c{i}": np.asarray(makers[random.integers(len(makers))](), dtype=float) for i in range(width)}
    assert (
        descriptions(table, tuple(name for name in table if random.random() < 0.3 and np.nanmin(table[name]) >= 0))
        == []
    )


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_relations_have_no_cycles_and_vanish_when_columns_are_shuffled(seed: int) -> None:
    random = np.random.default_rng(seed)
    table = {"c0": random.integers(0, 100, 300).astype(float), "c1": np.round(random.gamma(2, 5, 300), 1)}
    for i in range(2, 8):
        a, b = (table[f"c{j}"] for j in random.choice(i, 2, replace=False))
        options = [a + b, 2 * a, np.round(100 * a / (np.abs(b) + 1), 2), a % 4, a * b, a - b + 7]
        table[f"c{i}"] = np.asarray(options[random.integers(len(options))], dtype=float)
    order = random.permutation(8)
    table = {f"c{i}": table[f"c{i}"] for i in order}
    relations = search(table)
    targets = [relation.target for relation in relations]
    assert len(set(targets)) == len(targets)
    for earlier, later in pairwise(relations):
        assert later.target not in earlier.sources
    shuffled = {name: random.permutation(column) for name, column in table.items()}
    assert descriptions(shuffled) == []


def test_without_columns_there_are_no_relations() -> None:
    assert find_relations(np.empty((50, 0)), []) == []


def test_indicators_are_restored_from_the_column_that_determines_them(random: np.random.Generator) -> None:
    year = random.integers(93, 98, ROWS)
    table = {f"y{y}": (year == y).astype(int) for y in range(93, 98)} | {"year": year, "size": random.normal(size=ROWS)}
    assert descriptions(table) == [f"y{y} is determined by year" for y in range(97, 92, -1)]


def test_a_part_is_restored_from_its_share_of_the_whole(random: np.random.Generator) -> None:
    whole = random.integers(1_000, 100_000, ROWS)
    part = np.round(whole * random.uniform(0.9, 1.0, ROWS))
    share = np.round(100 * part / whole, 7)
    table = {"whole": whole, "part": part, "percent": share}
    assert descriptions(table) == ["part = 0.01 * percent * whole, rounded to 0 decimals"]
    # A sum needs the part; a coarse share does not determine it; and a ratio above 1 is no share.
    rest = random.integers(0, 50, ROWS)
    assert "percent = 100 * part / whole, rounded to 7 decimals" in descriptions(
        {**table, "total": part + rest, "rest": rest}
    )
    assert descriptions({**table, "percent": np.round(share, 1)}) == [
        "percent = 100 * part / whole, rounded to 3 digits"
    ]
    larger = {"a": whole, "b": part + 5_000, "ratio": np.round((part + 5_000) / whole, 9)}
    assert descriptions(larger) == ["ratio = b / a, rounded to 9 decimals"]
