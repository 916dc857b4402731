"""Values of columns as samples write them: with the digits and types of the table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sinuflow import DataError
from sinuflow.cli.csv_writer import CsvWriter
from sinuflow.data.columns import Column
from sinuflow.data.inspect import inspect_numbers
from sinuflow.data.lookups import Lookup
from sinuflow.data.rounding import Rounding
from sinuflow.data.values import numbers_of, to_arrow

RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(50, 10, 500)
DRAWN = np.array([48.123456789, -0.00001, 12345.6789012])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (VALUES.round(2), [48.12, 0.0, 12345.68]),
        (VALUES.round(2).astype(np.float32).astype(float), [48.119998931884766, 0.0, 12345.6796875]),
        ([float(f"{v:.6g}") for v in np.exp(VALUES / 5 - 10)], [48.1235, -0.00001, 12345.7]),
        (VALUES.round(2) + 1e-15 * VALUES, [48.12, 0.0, 12345.68]),
        ([*VALUES.round(2)[1:], 1.23456], [48.1235, -0.00001, 12345.7]),
        ([float(f"{v:.15g}") for v in VALUES], [48.123456789, -0.00001, 12345.6789012]),
        (VALUES, DRAWN.tolist()),
    ],
    ids=["decimals", "float32", "large and small", "computed", "more decimals", "15 digits", "all digits"],
)
def test_drawn_numbers_have_the_digits_of_the_column(values, expected):
    column = inspect_numbers("x", np.asarray(values), "double")
    assert to_arrow(column, DRAWN).to_pylist() == expected
    assert Column.from_dict(column.as_dict()) == column


def test_numbers_of_15_digits_are_drawn_with_15_digits():
    column = inspect_numbers("x", np.array([float(f"{v:.15g}") for v in VALUES]), "double")
    drawn = to_arrow(column, RANDOM.normal(50, 10, 300) / 3).to_pylist()
    assert max(len(str(value).replace(".", "").strip("-0")) for value in drawn) == 15


def test_numbers_of_all_magnitudes_are_drawn_with_the_digits_of_the_column():
    values = np.array([float(f"{v:.4g}") for v in 10 ** -np.random.default_rng(0).exponential(8, 1000)])
    column = inspect_numbers("p", values, "double")
    drawn = np.array([0.160711245172, 3.393637713563102e-17, 0.0, np.nan])
    assert to_arrow(column, drawn).to_pylist() == [0.1607, 3.394e-17, 0.0, None]
    assert Column.from_dict(column.as_dict()) == column


def test_numbers_are_missing_in_frames_where_they_are_in_csv_files():
    column = inspect_numbers("x", VALUES, "double")
    read = numbers_of(column, pa.array(["1.5", "n/a", "", None, "NULL"]), 0, "t")
    np.testing.assert_array_equal(read, [1.5, np.nan, np.nan, np.nan, np.nan])
    with pytest.raises(DataError, match=r"t, row 2: column 'x' must be a number; it holds '\?'"):
        numbers_of(column, pa.array(["1.5", "?"]), 0, "t")


def test_a_few_values_without_a_grid_come_back_exactly():
    months = 2000 + RANDOM.integers(0, 187, 8000) / 12
    column = inspect_numbers("date", months, "double")
    assert column.discrete
    assert column.atoms == tuple(np.unique(months))


def test_atoms_and_restored_values_keep_all_digits():
    column = inspect_numbers("x", np.append(VALUES.round(2), [1 / 3] * 100), "double")
    assert 1 / 3 in column.atoms
    column = replace(column, rounding=Rounding(decimals=2))
    assert to_arrow(column, np.array([1 / 3, 1.2345])).to_pylist() == [1 / 3, 1.23]
    column = replace(column, rounding=None, rounded=True, digits=1, step=0.1)
    assert to_arrow(column, np.array([1 / 3, 1.2345])).to_pylist() == [1 / 3, 1.2]
    column = replace(column, relation=Lookup("x", ("y",), (True,), ((0.0, 1.0),), (1.2345, 2.0)))
    assert to_arrow(column, np.array([1.2345])).to_pylist() == [1.2345]


@pytest.mark.parametrize(
    ("values", "kind"), [(("a", "b"), "large_string"), (("a", "b"), "string"), ((False, True), "bool")]
)
def test_categories_keep_their_type_even_if_all_are_missing(values, kind):
    column = Column("x", "category", kind, categories=values, missing=0.9)
    assert str(to_arrow(column, np.full(5, np.nan)).type) == kind
    assert to_arrow(column, np.array([1.0, 0.0])).to_pylist() == [values[1], values[0]]


def test_digits_are_not_rounded_to_infinity():
    assert Rounding(decimals=2, single=True).apply(np.array([1e300, -1e300])).tolist() == [1e300, -1e300]
    assert str(Rounding(decimals=0).apply(np.array([-0.2]))[0]) == "0.0"


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32", "uint64", "int64"])
def test_integers_keep_their_type(kind):
    column = inspect_numbers("x", np.arange(100.0) % 17, kind)
    drawn = to_arrow(column, np.array([3.0, np.nan, 1e30]))
    assert str(drawn.type) == kind
    assert drawn.to_pylist()[:2] == [3, None]
    assert drawn.to_pylist()[2] > 100


def test_csv_files_have_no_exponents_below_1e16(tmp_path):
    values = pa.array([15_000_000_000.0, 123456789012.5, None, 1e15, 1e16, 0.5, -2.5e10])
    batch = pa.record_batch({"x": values, "y": ["1e+15"] * 7})
    writer = CsvWriter(str(tmp_path / "t.csv"), batch.schema)
    writer.write_batch(batch)
    writer.close()
    assert [line.partition(",")[0] for line in (tmp_path / "t.csv").read_text().splitlines()] == [
        *("x", "15000000000", "123456789012.5", "", "1000000000000000", "1e+16", "0.5", "-25000000000"),
    ]


def test_tiny_numbers_are_not_zeros_of_a_coarse_grid():
    column = inspect_numbers("x", np.repeat([0.0, 1e-11, 1e-10, 1e-9, 1e-8], 3), "double")
    assert column.atoms == (0.0, 1e-11, 1e-10, 1e-9, 1e-8)
    assert Column.from_dict(column.as_dict()) == column
    assert to_arrow(column, np.array([1e-10])).to_pylist() == [1e-10]
