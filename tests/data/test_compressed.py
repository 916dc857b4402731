"""Compressed CSV files: the same table, and the same refusals, as without compression."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest

from sinuflow import DataError
from sinuflow.data import open_table
from sinuflow.data.formats import COMPRESSIONS
from tests.data.tables import columns_of, write_csv


def compressed(tmp_path, text, name):
    """A compressed file, and its bytes."""
    path = tmp_path / name
    with pa.CompressedOutputStream(str(path), COMPRESSIONS[path.suffix.lower()]) as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return path, path.read_bytes()


def outcome(path):
    """The cells of a table, or the message that refuses it, without the file's name."""
    try:
        table = open_table(path)
        return [batch.to_pydict() for batch in table.batches(table.columns)], table.count()
    except DataError as error:
        return str(error).replace(str(path), "FILE")


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_files_are_read_like_plain_ones(tmp_path, suffix):
    random = np.random.default_rng(0)
    outcomes = set()
    for start in ("a,b\n", "\ufeffa;b\n", "a\n", "\n\na\tb\n", '"a,",b\n'):
        for _ in range(40):
            text = start + "".join(random.choice(list('""",,,;\t\n\n\rx1é'), size=random.integers(1, 16)))
            plain = outcome(write_csv(tmp_path, text))
            assert outcome(compressed(tmp_path, text, f"t.csv{suffix}")[0]) == plain, text
            outcomes.add(plain if isinstance(plain, str) else "read")
    assert "read" in outcomes
    assert any("never closed" in message for message in outcomes)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_damaged_files_are_refused_in_one_line(tmp_path, suffix):
    text = "a,b\n" + "".join(f"{i},{i * 7919 % 1009}\n" for i in range(200_000))
    path, content = compressed(tmp_path, text, f"t.csv{suffix}")
    assert open_table(path).count() == 200_000
    middle = len(content) // 2
    for damaged in (content[:middle], content[:-3], b"a,b\n1,2\n", content + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is cut off, damaged, or not compressed") as caught:
            open_table(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"t.csv\S+ is empty"):
        open_table(path)


def test_names_say_what_is_compressed(tmp_path):
    rows = "".join(f"{i}\t{i % 3}\n" for i in range(20))
    assert [c.name for c in columns_of(compressed(tmp_path, "a\tb\n" + rows, "T.TSV.GZ")[0])] == ["a", "b"]
    for name in ("t.parquet.gz", "t.gz", "t.xz", "t.zip"):
        (tmp_path / name).write_bytes(gzip.compress(b"a,b\n"))
        with pytest.raises(DataError, match="unpack it first"):
            open_table(tmp_path / name)
