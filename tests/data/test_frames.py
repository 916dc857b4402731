"""Data frames and arrays as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sinuflow import DataError
from sinuflow.data import open_table
from sinuflow.data.image_files import holds_pictures
from tests.data.tables import FRAME, survey_of, write_csv


def test_arrays_have_numbered_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    assert open_table(tmp_path / "a.npy").columns == ["x0", "x1", "x2"]


def test_dtypes_that_arrow_lacks_are_converted(tmp_path):
    values = FRAME["real"].to_numpy()
    sparse = pd.DataFrame({"a": pd.arrays.SparseArray(values), "b": pd.arrays.SparseArray(FRAME["count"])})
    np.save(tmp_path / "long.npy", values[:, None].astype(np.longdouble))
    for data in (sparse, pd.DataFrame({"a": values.astype(np.longdouble)}), tmp_path / "long.npy"):
        np.testing.assert_array_equal(survey_of(data).numbers[:, 0], values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than one column called 'a'"),
        (pd.DataFrame({"x": [1.0], "id": [2**70]}), "column 'id' of the frame cannot be read .*convert it"),
        (pd.DataFrame({"x": [1.0, 2.0], "m": [1, "one"]}), "column 'm' of the frame cannot be read .*convert it"),
        (pl.LazyFrame({"x": [1.0]}).select("y"), "cannot read the LazyFrame: .*y"),
        (pl.scan_csv("/nowhere.csv"), "cannot read the LazyFrame: No such file"),
    ],
    ids=["duplicate names", "beyond 64 bits", "mixed", "lazy, wrong column", "lazy, no file"],
)
def test_frames_that_arrow_cannot_take_are_refused(data, message):
    with pytest.raises(DataError, match=message) as caught:
        open_table(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", ["(10000000000000000000000, 2)", "(-5, 2)", "(4, 4000000000000)", "((" * 900])
def test_headers_of_arrays_are_not_trusted(tmp_path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    path = write_csv(tmp_path, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, "x.npy")
    assert not holds_pictures(path)
    with pytest.raises(DataError, match="not an array of numbers"):
        open_table(path)
