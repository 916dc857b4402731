"""`score` adds its columns and leaves the others unchanged: the text of CSV cells, the types and values of Parquet."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

from sinuflow import DataError, fit_table
from sinuflow.cli.app import app
from sinuflow.cli.files import write_rows
from sinuflow.cli.score import scored
from sinuflow.data import open_table

CASES = int(os.environ.get("SINUFLOW_CASES", 60))
MANY = settings(
    max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ADDED = ["log_density", "anomaly_percentile"]


@pytest.fixture(scope="module")
def model():
    values = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame({"x": values[:, 0], "kind": np.where(values[:, 1] > 0, "a", "NO")})
    return fit_table(frame, steps=2, progress=False, architecture={"hidden": (4,), "blocks": 1})


def score(model, source, output):
    return write_rows(output, scored(model, open_table(source), "drop"))


# ---------------------------------------------------------------- CSV

NUMBERS = ["1", "0.5", "-2e-1", "+.25", "001.50", "1.", "", "NA"]
CELLS = st.one_of(
    st.sampled_from(["", "NA", "01751", "1000000000000000005", "1e5", " 7 ", "=1+1", "-", "true", "NaN", '"', "''"]),
    st.integers(-(10**25), 10**25).map(str),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=8),
    st.text(alphabet=',;\t|"\r\n \ufeff\u2028é', max_size=6),
)


@st.composite
def csv_files(draw):
    """A file, its cells, and which of them are quoted."""
    separator = draw(st.sampled_from(",;\t|"))
    names = draw(st.lists(st.sampled_from(["id", "a b", 'q"q', "é", "two\nlines", ""]), unique=True, min_size=1))
    header = draw(st.permutations([*names, "x", "kind"]))
    # The header decides which separator a file has.
    row = [
        st.sampled_from(NUMBERS) if name == "x" else st.sampled_from(["a", "NO", ""]) if name == "kind" else CELLS
        for name in header
    ]
    rows = [header, *draw(st.lists(st.tuples(*row).map(list), min_size=1, max_size=6))]
    everything = draw(st.booleans())

    def encode(text: str) -> str:
        if everything or re.search(r'[,;\t|"\r\n]', text) or text[:1] == "\ufeff" or (not text and draw(st.booleans())):
            return '"' + text.replace('"', '""') + '"'
        return text

    raw = [[encode(text) for text in row] for row in rows]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    # Arrow takes an empty cell for a quoted one if it is the file's very last and the one before it is quoted.
    last = end if not raw[-1][-1] else draw(st.sampled_from(["", end]))
    text = end.join(separator.join(row) for row in raw) + last
    return draw(st.sampled_from(["", "\ufeff"])) + text, rows, raw


@MANY
@given(file=csv_files())
def test_cells_of_csv_files_keep_their_text(model, tmp_path, file):
    text, rows, raw = file
    (tmp_path / "in.csv").write_bytes(text.encode())
    score(model, tmp_path / "in.csv", tmp_path / "out.csv")
    written = (tmp_path / "out.csv").read_bytes().decode()
    out = list(csv.reader(io.StringIO(written, newline="")))
    assert [row[:-2] for row in out] == rows
    assert out[0][-2:] == ADDED
    # An empty cell and a quoted empty cell are different things.
    quoted = re.findall(r'("(?:[^"]|"")*"|[^,\n]*)[,\n]', written)
    places = [cell for row in raw[1:] for cell in row]
    width = len(raw[0])
    kept = [cell for i, cell in enumerate(quoted) if i >= width + 2 and i % (width + 2) < width]
    assert [cell for cell in kept if cell in ("", '""')] == [cell for cell in places if cell in ("", '""')]

    score(model, tmp_path / "in.csv", tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert set(map(str, table.schema.types[:-2])) == {"string"}
    assert [["" if v is None else v for v in row.values()][:-2] for row in table.to_pylist()] == rows[1:]


def test_a_plain_csv_file_is_copied_byte_by_byte(model, tmp_path):
    lines = ["id,x,zip,kind,note", *(f'{10**18 + i},{i / 100},{i:05d},a,"{i}, or ""so"""' for i in range(9000))]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    assert score(model, tmp_path / "in.csv", tmp_path / "out.csv") == 9000
    out = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.rsplit(",", 2)[0] for line in out] == lines


# ---------------------------------------------------------------- Parquet

EXACT = decimal.Context(prec=38)
TYPES: dict[pa.DataType, st.SearchStrategy] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(38, 4): st.integers(-(10**37), 10**37).map(lambda i: EXACT.scaleb(decimal.Decimal(i), -4)),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=6),
    pa.large_string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.timestamp("ns", tz="Europe/Oslo"): st.integers(0, 2**62),
    pa.date32(): st.dates(datetime.date(1900, 1, 1)),
    pa.duration("us"): st.integers(0, 2**60),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["u", "v", "=w"]),
    pa.list_(pa.int64()): st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    pa.struct({"n": pa.uint64(), "t": pa.string()}): st.fixed_dictionaries({"n": st.integers(0, 2**64 - 1)}),
    pa.null(): st.none(),
}


@st.composite
def arrow_tables(draw):
    rows = draw(st.integers(1, 5))
    columns = {"x": draw(st.lists(st.floats(-3, 3), min_size=rows, max_size=rows)), "kind": ["a"] * rows}
    for i, kind in enumerate(draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=5))):
        values = draw(st.lists(st.none() | TYPES[kind], min_size=rows, max_size=rows))
        columns[f"c{i}"] = pa.array(values, kind)
    return pa.table(columns, metadata={"who": "someone"})


@MANY
@given(table=arrow_tables())
def test_columns_of_parquet_files_keep_their_types_and_values(model, tmp_path, table):
    parquet.write_table(table, tmp_path / "in.parquet")
    stored = parquet.read_table(tmp_path / "in.parquet")
    score(model, tmp_path / "in.parquet", tmp_path / "out.parquet")
    out = parquet.read_table(tmp_path / "out.parquet")
    assert out.column_names == [*table.column_names, *ADDED]
    assert out.select(table.column_names).equals(stored, check_metadata=True)


def test_the_index_of_pandas_comes_back(model, tmp_path):
    frame = pd.DataFrame(
        {"x": [0.1, 0.2], "kind": pd.Categorical(["a", "NO"]), "day": pd.to_datetime(["2020-01-01", "2021-01-01"])},
        index=[10**18 + 5, 10**18 + 7],
    )
    frame.to_parquet(tmp_path / "in.parquet")
    score(model, tmp_path / "in.parquet", tmp_path / "out.parquet")
    out = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(out.drop(columns=ADDED), frame)


def test_csv_is_refused_for_columns_that_it_cannot_hold(model, tmp_path):
    text = pa.array(["x"])
    broken = pa.Array.from_buffers(pa.string(), 1, [None, text.buffers()[1], pa.py_buffer(b"\xff")])
    for name, values, message in (
        ("deep", [[1]], "holds list<"),
        ("raw", [b"\xff"], "not UTF-8"),
        ("broken", broken, "not UTF-8"),
    ):
        parquet.write_table(pa.table({"x": [0.1], "kind": ["a"], name: values}), tmp_path / "in.parquet")
        with pytest.raises(DataError, match=rf"column '{name}' .*{message}.*\.parquet"):
            score(model, tmp_path / "in.parquet", tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()


# ---------------------------------------------------------------- texts that spreadsheets evaluate


@pytest.fixture(scope="module")
def formulas(tmp_path_factory):
    """A model file whose texts and one name look like formulas."""
    kinds = ["=HYPERLINK(1)", "+", "@a", "-5", "\tx", 'say "=1"'] * 20
    frame = pd.DataFrame({"=x": np.random.default_rng(0).normal(size=120), "kind": kinds})
    path = tmp_path_factory.mktemp("formulas") / "m.safetensors"
    fit_table(frame, steps=1, progress=False, architecture={"hidden": (4,), "blocks": 1}).save(path)
    return path


def sample(model, output, *options):
    return CliRunner().invoke(app, ["sample", str(model), "-n", "300", "--seed", "1", "-o", str(output), *options])


def test_sampled_texts_are_made_safe_for_spreadsheets_on_demand(formulas, tmp_path):
    plain = sample(formulas, tmp_path / "plain.csv")
    assert "'=x', 'kind'" in plain.stderr
    assert "--spreadsheet-safe" in plain.stderr
    safe = sample(formulas, tmp_path / "safe.csv", "--spreadsheet-safe")
    assert safe.exit_code == 0
    assert not safe.stderr
    raw, made_safe = (pd.read_csv(tmp_path / name, dtype="str") for name in ("plain.csv", "safe.csv"))
    assert set(raw["kind"]) == {"=HYPERLINK(1)", "+", "@a", "-5", "\tx", 'say "=1"'}
    assert set(made_safe["kind"]) == {"'=HYPERLINK(1)", "'+", "'@a", "-5", "'\tx", 'say "=1"'}
    assert made_safe["'=x"].tolist() == raw["=x"].tolist()
    assert (raw["=x"].str[0] == "-").any()


def test_an_option_for_spreadsheets_is_refused_elsewhere(formulas, tmp_path):
    result = sample(formulas, tmp_path / "s.parquet", "--spreadsheet-safe")
    assert isinstance(result.exception, DataError)
    assert not list(tmp_path.iterdir())
