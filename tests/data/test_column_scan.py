"""What a scan makes of columns that are not simply numbers, texts or times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from sinuflow import DataError
from sinuflow.data import Preprocessor, open_table
from sinuflow.data.columns import Column
from sinuflow.data.tables import read_rows
from sinuflow.data.values import to_arrow
from tests.data.tables import FRAME, columns_of, survey_of, write_csv

RANDOM = np.random.default_rng(0)
SIZES = [f"{value:.2f}" for value in RANDOM.normal(50, 10, 200)]


def table_of(cells: list[object], **others: object) -> pd.DataFrame:
    return pd.DataFrame({"x": cells, "y": RANDOM.normal(size=len(cells)), **others})


def test_texts_among_numbers_count_as_missing_in_fit_and_score():
    table = table_of([*SIZES, "<5", "unknown", "unknown"])
    found = survey_of(table)
    column = found.columns(found.rows)[0]
    assert (column.kind, column.unread) == ("number", ("<5", "unknown"))
    assert found.unread == {"x": 3}
    assert column.missing == pytest.approx(3 / 203, abs=0.01)
    assert Column.from_dict(column.as_dict()) == column
    preprocessor = Preprocessor(found.columns(found.rows))
    (rows,) = read_rows(open_table(table), preprocessor)
    assert np.isnan(rows.x[:, 0].numpy()).nonzero()[0].tolist() == [200, 201, 202]
    with pytest.raises(DataError, match="row 2: column 'x' must be a number; it holds 'gone'"):
        list(read_rows(open_table(table_of(["1.5", "gone"])), preprocessor))


def test_texts_after_many_rows_of_numbers_count_as_missing(tmp_path):
    lines = [f"{value}" for value in SIZES * 400]  # more than are read at a time
    found = survey_of(write_csv(tmp_path, "\n".join(["x", *lines, "oops"]) + "\n"))
    assert found.unread == {"x": 1}


def test_a_few_numbers_and_texts_are_categories():
    grades = ["9", "10", "11", "12", "other"] * 40
    found = survey_of(table_of(grades))
    assert set(found.columns(found.rows)[0].categories) == set(grades)
    assert not found.unread


@pytest.mark.parametrize(("number", "usual"), [(60, True), (2, False)])
def test_texts_as_frequent_as_numbers_are_categories(number, usual):
    races = [str(100 * i) for i in range(1, 16) for _ in range(20)] + ["Marathon"] * number
    found = survey_of(table_of(races))
    assert found.columns(found.rows)[0].kind == ("category" if usual else "number")
    assert found.unread == ({} if usual else {"x": number})


def test_many_texts_beside_numbers_are_identifiers():
    codes = [f"{i}" if i % 4 else f"{i}-B" for i in range(1000, 1200)]
    found = survey_of(table_of(codes))
    assert found.set_aside["x"].reason == "identifiers or free text, 200 different ones in 200 rows"


def test_a_map_of_numbers_reads_a_few_values_as_numbers():
    assert columns_of(table_of(["9", "10", "11", "12", "other"] * 40), maps={"x": "linear"})[0].unread == ("other",)


def test_dates_and_amounts_may_be_unknown():
    days = [f"2020-{i % 12 + 1:02d}-{i % 28 + 1:02d}" for i in range(100)]
    amounts = [f"${i * 37 % 991},000" for i in range(1, 101)]
    table = table_of([*days, "unknown"], amount=[*amounts, "n.a."])
    found = survey_of(table)
    columns = found.columns(found.rows)
    assert {c.table_column for c in columns if c.format is not None} == {"x", "amount"}
    assert found.unread == {"x": 1, "amount": 1}
    (rows,) = read_rows(open_table(table), Preprocessor(columns))
    assert np.isnan(rows.x.numpy()[-1]).sum() == len(columns) - 1  # all but y


@pytest.mark.parametrize(
    ("cells", "reason", "keep"),
    [
        ([f"0{i % 9 + 1}/0{i % 8 + 2}/2020" for i in range(72)], "none of them tells whether the day", "day-first"),
        (["1,234", "5,678", "9,123"] * 20, "which may be 1.234 or 1234", "decimal-point"),
        (["2020-01-01 10:00+01:00", "2020-01-02 11:00+02:00"] * 20, "different UTC offsets", ""),
    ],
    ids=["dates", "decimals", "offsets"],
)
def test_ambiguous_texts_are_set_aside_and_can_be_settled(cells, reason, keep):
    table = table_of(cells)
    aside = survey_of(table).set_aside["x"]
    assert reason in aside.reason
    assert aside.keep == keep
    if keep:
        assert columns_of(table, maps={"x": keep})[0].format is not None
        with pytest.raises(DataError, match=f"--map x={keep}"):
            survey_of(table, maps={"x": "auto"})
        with pytest.raises(DataError, match="plain numbers, and cannot be read by"):
            columns_of(table, maps={"x": keep, "y": keep})


def test_both_readings_of_a_date_can_be_chosen():
    table = table_of([f"0{i % 9 + 1}/0{i % 8 + 2}/2020" for i in range(72)])
    patterns = [columns_of(table, maps={"x": f"{first}-first"})[0].format.reader.pattern for first in ("day", "month")]
    assert patterns == ["%d/%m/%Y", "%m/%d/%Y"]


def test_infinities_count_as_missing_where_the_table_has_them():
    table = table_of([*RANDOM.normal(size=50), np.inf, -np.inf])
    found = survey_of(table)
    columns = found.columns(found.rows)
    assert (found.unread, columns[0].unread) == ({"x": 2}, ("inf",))
    assert np.isfinite([columns[0].low, columns[0].high]).all()
    (rows,) = read_rows(open_table(table), Preprocessor(columns))
    assert np.isnan(rows.x.numpy()[50:, 0]).all()
    finite = Preprocessor(columns_of(table_of(RANDOM.normal(size=50).tolist())))
    with pytest.raises(DataError, match="row 51: column 'x' holds an infinity"):
        list(read_rows(open_table(table), finite))


def test_columns_with_hardly_any_value_are_set_aside():
    sparse = [1.5, 2.5, None] + [None] * 60
    found = survey_of(table_of(sparse))
    assert found.set_aside["x"] == ("holds only 2 values in 63 rows", "auto")
    train = np.arange(3, 63)  # without those values
    assert survey_of(table_of(sparse), maps={"x": "auto"}).columns(train)[0].atoms == (1.5, 2.5)
    assert survey_of(table_of([None] * 20, z=["a"] * 20)).set_aside["x"] == ("holds no values", "")


def test_a_category_may_have_one_value_and_missing_ones():
    column = columns_of(table_of(["yes", None] * 20))[0]
    assert column.categories == ("yes",)
    assert Column.from_dict(column.as_dict()) == column


def test_named_columns_are_not_set_aside_silently():
    table = FRAME.assign(id=[f"t{i}" for i in range(40)], row=np.arange(40), parts=[[1]] * 40)
    assert set(survey_of(table).set_aside) == {"id", "row", "parts"}
    with pytest.raises(DataError, match="'row' cannot be used: row numbers: run again with --map row=auto"):
        survey_of(table, context=["row"])
    with pytest.raises(DataError, match="neither number nor text: run again with --drop parts"):
        survey_of(table, maps={"parts": "auto"})


def test_all_problems_are_listed_with_options_without_them():
    table = FRAME.assign(**{"the id": np.arange(40) + 2**60, "neg": np.linspace(-3, 3, 40)[::-1]})
    with pytest.raises(DataError) as caught:
        survey_of(table, context=["the id"], maps={"neg": "log", "city": "logit"})
    assert str(caught.value).splitlines() == [
        "the frame: 3 columns cannot be used:",
        "  column 'the id' cannot be used: holds the integer 1152921504606846976 in row 1, which float64 would round: "
        "an identifier, or a quantity to convert to floating point",
        "  column 'city' holds categories, and cannot take the map 'logit'",
        "  column 'neg' cannot take a log: it holds -3, not above 0",
        "run again with --map 'the id=category' --map city=auto --map neg=auto "
        "(Python: maps={'the id': 'category', 'city': 'auto', 'neg': 'auto'})",
    ]
    with pytest.raises(DataError, match="'ctiy': did you mean 'city'") as caught:
        survey_of(table, drop=["ctiy"], maps={"real": "cube"})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("cell", ["2020-01-05", "soon"])
def test_texts_in_a_column_of_timestamps_are_read_or_refused_in_one_line(cell):
    times = pa.table({"x": pa.array(np.arange(40) * 86_400, pa.timestamp("s")), "y": RANDOM.normal(size=40)})
    preprocessor = Preprocessor(columns_of(times))
    rows = read_rows(open_table(table_of([cell])), preprocessor)
    if cell == "soon":
        with pytest.raises(DataError, match="column 'x' holds 'soon', which is not in the format"):
            list(rows)
    else:
        assert np.isfinite(next(rows).x.numpy()).all()


def test_all_columns_that_differ_from_the_training_table_are_named():
    preprocessor = Preprocessor(columns_of(FRAME))
    other = FRAME.assign(real="long", count=[*range(30), *[np.inf] * 10])
    with pytest.raises(DataError) as caught:
        list(read_rows(open_table(other), preprocessor))
    assert str(caught.value).splitlines() == [
        "the frame: 2 columns are not as in the training table:",
        "  the frame, row 1: column 'real' must be a number; it holds 'long'",
        "  the frame, row 31: column 'count' holds an infinity",
    ]
    with pytest.raises(DataError, match=r"^the frame, row 1: column 'real' must be a number; it holds 'long'$"):
        list(read_rows(open_table(FRAME.assign(real="long")), preprocessor))


def test_cells_without_end_are_refused_by_name(monkeypatch):
    preprocessor = Preprocessor(columns_of(FRAME[["real", "count"]]))
    levels, cells = preprocessor.locate(torch.zeros(5, 2, dtype=torch.float64))
    cells = cells._replace(start=cells.start * torch.inf)
    monkeypatch.setattr(preprocessor, "locate", lambda x: (levels, cells))
    with pytest.raises(DataError, match="column 'real' holds values that its map 'linear' sends to infinity"):
        preprocessor.prepare(torch.zeros(5, 2, dtype=torch.float64))


def test_codes_keep_the_zeros_at_their_start(tmp_path):
    codes = [f"{i:05d}" for i in RANDOM.integers(0, 40_000, 200)]
    table = write_csv(tmp_path, "zip,n\n" + "".join(f"{code},{int(code)}\n" for code in codes))
    column, plain = columns_of(table)
    assert (column.kind, column.zeros, plain.zeros) == ("number", 5, 0)
    assert to_arrow(column, np.array([7.0, np.nan, 12345.0])).to_pylist() == ["00007", None, "12345"]
    assert Column.from_dict(column.as_dict()) == column
    assert columns_of(pd.DataFrame({"x": ["05", "5", "70"] * 20}))[0].zeros == 0
    assert columns_of(pd.DataFrame({"x": ["15", "75", "70"] * 20}))[0].zeros == 0


def test_dates_of_zeros_count_as_missing():
    days = [f"2020-{i % 12 + 1:02d}-{i % 28 + 1:02d}" for i in range(100)]
    assert survey_of(table_of([*days, "0000-00-00"])).unread == {"x": 1}


def test_numbers_whose_variance_overflows_are_set_aside():
    aside = survey_of(table_of((RANDOM.normal(size=50) * 1e300).tolist())).set_aside
    assert "beyond 1e+150" in aside["x"].reason
