"""Reading JSON lines."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinuflow import DataError
from sinuflow.data import json_lines, open_table
from tests.data.tables import columns_of, survey_of, write_csv

CELLS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))


def cells_of(path):
    table = open_table(path)
    return [row for batch in table.batches(table.columns) for row in batch.to_pylist()]


@given(st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), CELLS, min_size=1), min_size=1, max_size=8))
def test_cells_keep_their_text(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("json") / "t.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = [{n: v if isinstance(v := row.get(n), str | None) else json.dumps(v) for n in names} for row in rows]
    assert cells_of(path) == text


def test_columns_may_begin_late_and_types_are_those_of_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_CHUNK", 3)
    lines = [json.dumps({"a": i if i < 10 else i + 0.5, "yes": i % 2 == 0}) for i in range(20)]
    lines += [json.dumps({"late": i, "a": None, "yes": True}) for i in range(12)]
    path = write_csv(tmp_path, "\ufeff" + "\r\n".join(lines) + "\r\n", "t.ndjson")
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    for file in (path, tmp_path / "t.jsonl.gz"):
        assert open_table(file).columns == ["a", "yes", "late"]
        with pytest.raises(DataError, match="12 in 'a', 20 in 'late'"):
            survey_of(file, missing="refuse")
        a, yes = columns_of(file, drop=["late"], missing="drop")
        assert (a.type, a.kind, yes.categories) == ("double", "number", ("false", "true"))
        np.testing.assert_array_equal(survey_of(file, drop=["late"], missing="drop").numbers[:3, 0], [0, 1, 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{}\n", "is empty"),
        ('{"a": 1}\n{"a": 1', "line 2 is not JSON .*one object per line"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('[{"a": 1}]', "line 1 is not an object"),
        ("null", "line 1 is not an object"),
        ('{"a": 1}\n\n{"b": {"c": 1}}', "line 3: column 'b' holds an object: .*json_normalize"),
        ('{"a": [1]}', "column 'a' holds a list"),
        ('{"a": 1, "a": 2}', "line 1 names a column twice"),
        (b'{"a": "\xe9"}', "is not UTF-8 text"),
        (r'{"a": "\ud800"}', "is not UTF-8 text"),
        ('{"a": 1}\n' * 20 + '{"a": 9007199254740993}', "integer 9007199254740993 in row 21"),
        ('{"a": 1}\n' * 20 + '{"a": 18446744073709551617}', "integer 18446744073709551617 in row 21"),
    ],
)
def test_unusable_files_are_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        columns_of(write_csv(tmp_path, text, "t.jsonl"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cell", "unread"), [("Infinity", ("inf",)), ("NaN", ()), ('"x"', ("x",)), ("null", ())])
def test_cells_without_a_number_count_as_missing(tmp_path, cell, unread):
    lines = [f'{{"a": {i}}}\n' for i in range(20, 40)]
    (column,) = columns_of(write_csv(tmp_path, "".join([*lines, f'{{"a": {cell}}}']), "t.jsonl"))
    assert column.missing > 0
    assert column.unread == unread
