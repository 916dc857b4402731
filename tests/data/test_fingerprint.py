"""A run is resumed only with the data that it began with."""

from __future__ import annotations

import sys

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import torch

from sinuflow import SinusoidalFlow, TrainingError, fit, fit_table
from sinuflow.bijections.pixels import PixelMap
from sinuflow.data.sources import fingerprint
from sinuflow.training import ArrowRows, ImageRows, MemoryRows
from tests.models.small_images import gradients
from tests.training.small import banana, parquet_folder, small_flow


def begun(folder, train, val):
    options = {"steps": 4, "progress": False, "device": "cpu", "checkpoint": folder, "batch_size": 32}
    fit(small_flow(), train, val, **options)
    return options | {"resume": True}


def test_a_change_of_any_row_is_detected(tmp_path):
    train, val = banana(1000), banana(300, seed=1)
    options = begun(tmp_path, train, val)
    for row in (0, 400, 999):
        other = train.clone()
        other[row, 1] += 1e-6
        with pytest.raises(TrainingError, match="a run with other data"):
            fit(small_flow(), other, val, **options)
    changed = val.clone()
    changed[299, 0] += 1e-6
    with pytest.raises(TrainingError, match="a run with other validation data"):
        fit(small_flow(), train, changed, **options)
    with pytest.raises(TrainingError, match="a run with other validation data"):
        fit(small_flow(), train, None, **options)
    fit(small_flow(), train, val, **options)


def test_rows_in_another_order_are_other_data(tmp_path):
    train = banana(500)
    options = begun(tmp_path, train, None)
    with pytest.raises(TrainingError, match="other data"):
        fit(small_flow(), train.flip(0), None, **options)


def test_streamed_rows_are_hashed_to_the_last(tmp_path):
    dataset, x = parquet_folder(tmp_path)
    before = fingerprint(ArrowRows(dataset, 2))
    assert fingerprint(ArrowRows(dataset, 2, buffer=10)) == before  # how they are read does not matter
    x[-1, 1] += 1e-9
    part = x[750:]
    pa.parquet.write_table(pa.table({"a": part[:, 0], "b": part[:, 1]}), tmp_path / "3.parquet")
    assert fingerprint(ArrowRows(pa.dataset.dataset(str(tmp_path)), 2)) != before


def test_raw_rows_are_hashed_and_not_their_encoding():
    images = gradients()
    rows = ImageRows(images, PixelMap())
    assert fingerprint(rows) == fingerprint(ImageRows(images.clone(), PixelMap()))
    assert fingerprint(rows) != fingerprint(ImageRows(images, PixelMap(alpha=0.05)))
    assert fingerprint(rows) != fingerprint(ImageRows(images, PixelMap(), flips=True))
    changed = images.clone()
    changed[-1, 0, -1, -1] ^= 1
    assert fingerprint(rows) != fingerprint(ImageRows(changed, PixelMap()))
    x = torch.randn(10, 2, dtype=torch.float64)
    assert fingerprint(MemoryRows(x)) != fingerprint(MemoryRows(x, identity="other"))
    assert fingerprint(MemoryRows(x[:, :1], x[:, 1:])) != fingerprint(MemoryRows(x[:, 1:], x[:, :1]))


@pytest.mark.parametrize("streamed", [False, True])
def test_every_row_of_a_table_counts_also_those_for_testing(tmp_path, monkeypatch, streamed):
    if streamed:
        monkeypatch.setattr(sys.modules["sinuflow.data.survey"], "IN_MEMORY", 100)
        monkeypatch.setattr(sys.modules["sinuflow.data.survey"], "SAMPLE", 60)
    frame = pd.DataFrame(banana(200).numpy(), columns=["a", "b"])
    path = tmp_path / "table.csv"
    options = {"steps": 2, "architecture": {"hidden": (4,), "blocks": 1}, "progress": False, "device": "cpu"}
    frame.to_csv(path, index=False)
    model = fit_table(path, **options, checkpoint=tmp_path / "run")
    fit_table(path, **options, checkpoint=tmp_path / "run", resume=True)
    for part in ("train", "validation", "test"):
        changed = frame.copy()
        row = getattr(model.split, part)[-1]
        changed.loc[row, "a"] = changed["a"].drop(row).median() + 1e-3
        changed.to_csv(path, index=False)
        with pytest.raises(TrainingError, match="other data"):
            fit_table(path, **options, checkpoint=tmp_path / "run", resume=True)


def test_user_defined_sources_are_hashed_by_their_batches():
    class Source:
        rows = 100

        def __init__(self, x):
            self.inner = MemoryRows(x)

        def in_order(self, size):
            return self.inner.in_order(size)

    class Named(Source):
        identity = 7

    x = torch.randn(100, 2)
    assert fingerprint(Named(x)) == fingerprint(Source(x))
    before = fingerprint(Source(x))
    x[99, 1] += 1
    assert fingerprint(Source(x)) != before


def test_without_a_checkpoint_nothing_is_hashed(monkeypatch):
    module = sys.modules["sinuflow.training.fit"]
    monkeypatch.setattr(module, "fingerprint", lambda _: pytest.fail("the data were read for nothing"))
    fit(SinusoidalFlow(2, blocks=1, hidden=(4,)), banana(50), steps=2, progress=False, device="cpu")
