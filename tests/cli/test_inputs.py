"""Tables from standard input, pipes and databases on the command line."""

from __future__ import annotations

import gzip
import os
import sqlite3
import threading
from contextlib import closing, contextmanager

import numpy as np
import pandas as pd
import pytest

import sinuflow
from tests.cli.test_commands import ENVIRONMENT, fails, make_frame, succeeds

CSV = make_frame().to_csv(index=False).encode()
FIT = ("-o", "m.safetensors", "--steps", 5, "-q")


def test_a_table_comes_from_standard_input(tmp_path):
    (tmp_path / "tmp").mkdir()
    options = {"env": {**ENVIRONMENT, "TMPDIR": str(tmp_path / "tmp")}, "cwd": tmp_path}
    out = succeeds("fit", "-", *FIT, "--report", "r.html", input=CSV.decode(), **options)
    assert "standard input: 300 rows, 4 columns modelled" in out
    assert (tmp_path / "r.html").exists()
    make_frame().to_parquet(tmp_path / "t.csv")  # not a pipe, and not what its name says
    before = (tmp_path / "t.csv").read_bytes()
    with (tmp_path / "t.csv").open() as stdin:
        succeeds("score", "m.safetensors", "-", "-o", "s.parquet", stdin=stdin, **options)
        assert "it is also /dev/stdin" in fails("fit", "-", "-o", "t.csv", "--force", stdin=stdin, **options)
    scored = pd.read_parquet(tmp_path / "s.parquet")
    assert scored.iloc[:, :-2].equals(make_frame())
    np.testing.assert_allclose(
        scored["log_density"], sinuflow.load(tmp_path / "m.safetensors").log_prob(make_frame()), rtol=1e-9
    )
    assert (tmp_path / "t.csv").read_bytes() == before
    assert not os.listdir(tmp_path / "tmp")


@contextmanager
def pipe(path, content):
    """A named pipe that a thread writes to."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join()


def test_a_table_comes_from_a_pipe(tmp_path):
    with pipe(tmp_path / "fit.csv", CSV) as path:
        assert "fit.csv: 300 rows" in succeeds("fit", path, *FIT, cwd=tmp_path)
    with pipe(tmp_path / "score", gzip.compress(CSV)) as path:
        succeeds("score", "m.safetensors", path, "-o", "s.csv", cwd=tmp_path)
    model = sinuflow.load(tmp_path / "m.safetensors")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "s.csv")["log_density"], model.log_prob(make_frame()), rtol=1e-9)
    with pytest.raises(sinuflow.DataError, match="not a regular file, and tables are read more than once"):
        sinuflow.fit_table(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "pipe is empty"), (CSV + b"1,2,Oslo\n", "pipe: CSV parse error: Row #302: Expected 4 columns")],
)
def test_mistakes_in_a_pipe_are_named(tmp_path, content, message):
    with pipe(tmp_path / "pipe", content):
        assert message in fails("fit", "pipe", *FIT, cwd=tmp_path)


def test_a_table_comes_from_a_database(tmp_path):
    with closing(sqlite3.connect(tmp_path / "people.db")) as connection:
        make_frame().to_sql("people", connection, index_label="id")
    before = (tmp_path / "people.db").read_bytes()
    query = "select height, weight, city from people order by id"
    report = ("--report", "r.html")
    out = succeeds("fit", "sqlite:///people.db", "--sql", query, *FIT, *report, cwd=tmp_path)
    assert "the query: 300 rows, 3 columns modelled" in out
    everything = "select * from people order by id"
    succeeds("score", "m.safetensors", "people.db", "--sql", everything, "-o", "s.csv", cwd=tmp_path)
    scored = pd.read_csv(tmp_path / "s.csv")
    assert scored["id"].tolist() == list(range(300))
    model = sinuflow.load(tmp_path / "m.safetensors")
    np.testing.assert_allclose(scored["log_density"], model.log_prob(make_frame()), rtol=1e-9)
    succeeds("report", "m.safetensors", "people.db", "--sql", query, "-o", "r2.html", cwd=tmp_path)
    for arguments, message in (
        (("fit", "people.db", *FIT, "--force"), "choose rows by `--sql 'SELECT * FROM table'`"),
        (("fit", "people.db", "--sql", "select x from people", *FIT, "--force"), "no such column: x"),
        (("fit", "sqlite:///people.db", "--sql", query, "-o", "people.db", "--force"), "it is also people.db"),
    ):
        assert message in fails(*arguments, cwd=tmp_path)
    assert (tmp_path / "people.db").read_bytes() == before
