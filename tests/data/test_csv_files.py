"""Reading CSV files, and refusing malformed ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sinuflow import DataError
from sinuflow.data import open_table
from tests.data.tables import FRAME, columns_of, survey_of, write_csv


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n", "1 usable row: "),
        ("a,a\n" + "1,2\n" * 20, "more than one column called 'a'"),
        ("a,b\n" + "1,2\n" * 20 + "1,2,3\n", "Expected 2 columns, got 3"),
        ("1,2\n3,4\n", "no header"),
        (b"a,b\n" + b"caf\xe9,2\n" * 20, "UTF-8"),
        ("a,b\n" + "1,2\n" * 20, "every column is constant"),
        ("a\n" + "".join(f"t{i}\n" for i in range(200)), "'a' cannot be used: identifiers .*--map a=auto"),
    ],
    ids=[
        "empty", "header only", "one row", "duplicate names", "ragged", "no header", "not UTF-8", "all constant",
        "identifiers",
    ],
)  # fmt: skip
def test_bad_csv_files_are_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        columns_of(write_csv(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_recognised(tmp_path, separator):
    FRAME.to_csv(tmp_path / "t.csv", index=False, sep=separator)
    assert open_table(tmp_path / "t.csv").columns == list(FRAME.columns)


def test_odd_but_valid_csv_files_are_read(tmp_path):
    rows = "".join(f'{i},"two\nlines"\r\n{i}.5,one\r\n' for i in range(10))
    found = survey_of(write_csv(tmp_path, "\ufeffa,b\r\n" + rows))
    assert [c.name for c in found.columns(found.rows)] == ["a", "b"]
    assert found.total == 20


@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n", "\ufeff\n", "\ufeff\n\n"], ids=repr)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_blank_lines_of_one_column_are_missing_values(tmp_path, start, end):
    for text, expected in (
        ("a\n1\n\n3\n", ["1", None, "3"]),
        ("a\n1\n\n3", ["1", None, "3"]),
        ("a\n\n1\n", [None, "1"]),
        ("a\n1\n\n", ["1", None]),
        ('a\n""\n\n 7\n', ["", None, " 7"]),
    ):
        table = open_table(write_csv(tmp_path, (start + text).replace("\n", end)))
        assert [cell for batch in table.batches(["a"]) for cell in batch["a"].to_pylist()] == expected
    with pytest.raises(DataError, match="2 in 'a'"):
        survey_of(write_csv(tmp_path, start + "a" + "\n1\n2" * 10 + "\n\n3\n\n4\n"), missing="refuse")
    two = open_table(write_csv(tmp_path, start + "a,b\n1,2\n\n3,4\n\n"))
    assert two.count() == 2


@pytest.mark.parametrize("word", ["NaN", "nan", "NAN", "NA", "?", "null"])
def test_every_word_for_a_missing_value_is_counted(tmp_path, word):
    text = "a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(20)) + f"{word},1\n"
    with pytest.raises(DataError, match="1 in 'a'"):
        survey_of(write_csv(tmp_path, text), missing="refuse")
    frame = pd.DataFrame({"a": [*map(str, range(20)), word], "b": np.arange(21.0)})
    if word.lower() == "nan":  # as a text in Parquet, too
        with pytest.raises(DataError, match="1 in 'a'"):
            survey_of(frame, missing="refuse")


def test_separators_inside_of_quotes_do_not_count(tmp_path):
    text = '"a;b;c",x\n' + "".join(f"{i},{i % 3}\n" for i in range(20))
    assert open_table(write_csv(tmp_path, text)).columns == ["a;b;c", "x"]


def test_a_row_that_is_too_long_is_explained(tmp_path):
    text = "a,b\n" + "1,2\n" * 20 + '"' + "x" * 3_000_000 + '",1\n'
    with pytest.raises(DataError, match="never closed"):
        survey_of(write_csv(tmp_path, text))


def test_wide_csv_files_come_in_blocks_of_many_rows(tmp_path):
    header, row = (",".join(f"{letter}{i:011d}" for i in range(4000)) for letter in "c1")
    path = write_csv(tmp_path, "\n".join([header, *[row] * 100]))
    table = open_table(path)
    assert [len(batch) for batch in table.batches(table.columns[:1])] == [100]
