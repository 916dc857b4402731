"""Opening tables of all kinds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from sinuflow import DataError
from sinuflow.data import open_table
from sinuflow.data.image_files import holds_pictures
from tests.data.tables import FRAME, survey_of, write_csv


@pytest.fixture(
    params=["csv", "tsv", "tsv.bz2", "csv.zst", "jsonl", "parquet", "feather", "arrow file", "folder", "pandas",
            "polars", "polars lazy", "arrow", "arrow stream", "duckdb"]
)  # fmt: skip
def table(request, tmp_path):
    kind, path = request.param, tmp_path / f"t.{request.param.split()[0]}"
    if kind.startswith(("csv", "tsv")):
        text = FRAME.to_csv(index=False, sep="\t" if kind.startswith("tsv") else ",").encode()
        with pa.output_stream(str(path)) as file:
            file.write(text)
        return path
    if kind == "jsonl":
        FRAME.to_json(path, orient="records", lines=True, double_precision=15)
        return path
    if kind in ("parquet", "feather"):
        getattr(FRAME, f"to_{kind}")(path)
        return str(path)
    arrow = pa.Table.from_pandas(FRAME)
    if kind == "arrow file":
        with pa.ipc.new_stream(path, arrow.schema) as writer:
            writer.write_table(arrow)
        return path
    if kind == "folder":
        FRAME[:15].to_parquet(tmp_path / "1.parquet")
        FRAME[15:].to_parquet(tmp_path / "2.parquet")
        return tmp_path
    if kind == "duckdb":
        return pytest.importorskip("duckdb").from_arrow(arrow)
    frames = {"pandas": FRAME, "polars": pl.from_pandas(FRAME), "polars lazy": pl.from_pandas(FRAME).lazy()}
    return {**frames, "arrow": arrow, "arrow stream": arrow.to_reader()}[kind]


def test_all_forms_of_a_table_have_the_same_columns(table):
    found = survey_of(table)
    columns = {c.name: c for c in found.columns(found.rows)}
    assert columns["real"].kind == columns["count"].kind == "number"
    assert columns["city"].kind == columns["yes"].kind == "category"
    assert columns["same"].kind == "constant"
    assert set(columns["city"].categories) == {"Lima", "Oslo", "Rome"}  # in an order that the data suggest
    assert [str(c).lower() for c in columns["yes"].categories] == ["false", "true"]
    assert found.total == 40
    np.testing.assert_allclose(found.numbers[:, 0], FRAME["real"])
    assert [columns["city"].categories[int(code)] for code in found.numbers[:, 2]] == FRAME["city"].tolist()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", b"not parquet", "cannot read"),
        ("x.npy", b"not numpy", "not an array of numbers"),
        ("x.docx", b"word", "reads .csv, .tsv"),
    ],
)
def test_files_of_another_format_are_refused(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        open_table(write_csv(tmp_path, content, name))


def test_other_refusals(tmp_path):
    with pytest.raises(DataError, match="there is no"):
        open_table(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="without"):
        open_table(tmp_path)
    with pytest.raises(DataError, match="cannot read a table from int"):
        open_table(3)
    with pytest.raises(DataError, match=r"cannot read a table from Series: give a frame, .* to_frame\(\)"):
        open_table(pd.Series([1.0, 2.0]))
    np.save(tmp_path / "p.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(DataError, match="not an array of numbers"):
        open_table(tmp_path / "p.npy")
    with pytest.raises(DataError, match="rows and columns"):
        open_table(np.zeros(5))
    with pytest.raises(DataError, match="no column 'z'"):
        survey_of(FRAME, drop=["z"])
    with pytest.raises(DataError, match="no columns left"):
        survey_of(FRAME[["real"]], drop=["real"])
    assert "neither number nor text" in survey_of(FRAME.assign(parts=[[1, 2]] * 40)).set_aside["parts"].reason


def test_invalid_paths_are_refused(tmp_path):
    np.savez(tmp_path / "archive.npz", a=np.zeros((3, 3)))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for name, message in (
        ("archive.npy", "not an array of numbers"),
        ("loop.csv", "symbolic links"),
        ("x" * 300 + ".csv", "too long"),
        ("a\0b.csv", "there is no"),
    ):
        assert not holds_pictures(tmp_path / name)
        with pytest.raises(DataError, match=message):
            open_table(tmp_path / name)
