"""Quotes of CSV files: what the check accepts, and what it refuses with its line."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sinuflow import DataError
from sinuflow.data import csv_files, open_table

CASES = int(os.environ.get("SINUFLOW_CASES", 2000))


def malformed(text: str) -> bool:
    """The same by a state machine, byte by byte."""
    state = "start"
    for letter in text:
        if state == "quoted":
            state = "closed" if letter == '"' else state
        elif letter in ",\n\r":
            state = "start"
        elif letter == '"' and state in ("start", "closed"):
            state = "quoted"
        elif state == "closed":
            return True
        else:
            state = "plain"
    return state == "quoted"


def is_refused(path) -> bool:
    try:
        csv_files.check_quotes(path, ",", "t")
    except DataError:
        return True
    return False


def test_malformed_quotes_are_refused_and_no_others(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    path = tmp_path / "t.csv"
    refused = 0
    for _ in range(CASES):
        text = "".join(random.choice(list('""",\nx\r'), size=random.integers(1, 14)))
        path.write_text(text, newline="")
        expected = malformed(text)
        for size in (1, 2, 3, 1 << 20):  # the state is carried from block to block
            monkeypatch.setattr(csv_files, "_BLOCK", size)
            assert is_refused(path) == expected, (text, size)
        refused += expected
    assert 0.2 * CASES < refused < 0.9 * CASES


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('1,"two\nlines"\n"ab"cd,2\n', "line 4: a cell goes on after its closing quote"),
        ('1,x"y\n"ab" ,2\n', "line 3: a cell goes on"),
        ('1,2\n1,"2\n', "line 3: a quote is never closed"),
        ('1,x"y\n1,"2\n\n', "line 3: a quote is never closed"),
        ('1,"2\n""3""\n', "line 2: a quote is never closed"),
    ],
)
def test_malformed_quotes_are_refused_with_their_line(tmp_path, rows, message):
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "t.csv").write_text("a,b\n" + rows, newline=end)
        with pytest.raises(DataError, match=message):
            open_table(tmp_path / "t.csv")


def test_quotes_as_text_are_kept(tmp_path):
    (tmp_path / "t.csv").write_text('\ufeff"a",b\n5" pipe,"say ""so"""\n"",\'"\n')
    table = open_table(tmp_path / "t.csv")
    (batch,) = table.batches(["a", "b"])
    assert batch.to_pydict() == {"a": ['5" pipe', ""], "b": ['say "so"', "'\""]}
