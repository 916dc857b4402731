"""Feather, Arrow and NumPy archives, and formats that are not read."""

from __future__ import annotations

import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from sinuflow import DataError
from sinuflow.data import open_table
from tests.data.tables import FRAME, survey_of, write_csv


def test_damaged_arrow_files_are_refused(tmp_path):
    table = pa.Table.from_pandas(FRAME[["real", "city"]])
    for name in ("t.feather", "t.arrow"):
        if name == "t.feather":
            pyarrow.feather.write_feather(table, tmp_path / name, compression="uncompressed")
        else:
            with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
                writer.write_table(table)
        content = (tmp_path / name).read_bytes()
        random, refused, read = np.random.default_rng(0), 0, 0
        for _ in range(100):
            damaged = np.frombuffer(content, np.uint8).copy()
            damaged[random.integers(len(damaged), size=20)] = random.integers(256, size=20)
            (tmp_path / name).write_bytes(damaged[: random.integers(len(damaged) // 2, len(damaged))].tobytes())
            try:
                opened = open_table(tmp_path / name)
                [batch.to_pylist() for batch in opened.batches(opened.columns)]
            except DataError as error:
                refused += "\n" not in str(error)
                continue
            read += 1
        assert refused + read == 100
        assert refused > 50
    for content in (b"", b"ARROW1", b"text"):
        with pytest.raises(DataError, match="cannot read"):
            open_table(write_csv(tmp_path, content, "t.arrow"))


def test_the_rows_of_an_archive_are_its_only_array_or_have_a_usual_name(tmp_path):
    rows, labels = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20)
    for arrays in ({"anything": rows}, {"X": rows, "y": labels}, {"labels": labels, "data": rows}):
        np.savez_compressed(tmp_path / "t.npz", **arrays)
        np.testing.assert_array_equal(survey_of(tmp_path / "t.npz").numbers, rows)
    for arrays in ({"train": rows, "test": rows}, {"X": rows, "x": rows}, {}):
        np.savez(tmp_path / "t.npz", **arrays)
        with pytest.raises(DataError, match=r"holds the arrays .*call the one with the rows 'X'"):
            open_table(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", X=labels)
    with pytest.raises(DataError, match="rows and columns"):
        open_table(tmp_path / "t.npz")


def test_archives_are_not_trusted(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=np.array([[{}]]))  # a pickle
    with pytest.raises(DataError, match="is not an archive of arrays"):
        open_table(path)
    for shape in ("(10000000000000000000000, 2)", "(-5, 2)", "(4, 4000000000000)", "((" * 900):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        with pytest.raises(DataError, match="is not an archive of arrays") as caught:
            open_table(path)
        assert "\n" not in str(caught.value)
    for content in (b"", b"text", b"PK\x03\x04"):
        with pytest.raises(DataError, match="is not an archive of arrays"):
            open_table(write_csv(tmp_path, content, "t.npz"))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("t.xlsx", "pandas.read_excel"),
        ("t.dta", "pandas.read_stata"),
        ("t.sas7bdat", "pandas.read_sas"),
        ("t.json", "one object per line"),
        ("t.sqlite", "--sql"),
        ("t.pkl", "pickles can run code"),
        ("t.unknown", "save the table in a format that Sinuflow reads"),
    ],
)
def test_other_formats_are_refused_with_a_way_to_read_them(tmp_path, name, remedy):
    with pytest.raises(DataError, match=f"{remedy}.*Sinuflow reads .csv, .tsv"):
        open_table(write_csv(tmp_path, "x", name))
