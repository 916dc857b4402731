"""Training on streamed data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import torch

from sinuflow import ArgumentError, fit
from sinuflow.training import ArrowRows, MemoryRows
from tests.training.small import banana, parquet_folder, small_flow


def test_an_epoch_of_a_stream_has_every_row_once(tmp_path):
    dataset, x = parquet_folder(tmp_path)
    source = ArrowRows(dataset, 2, buffer=300)
    batches = list(source.epoch(0, 50, seed=0))
    seen = torch.cat([b.x for b in batches]).numpy()
    assert source.rows == 1000
    assert len(seen) == 1000
    np.testing.assert_allclose(np.sort(seen[:, 0]), np.sort(x[:, 0].astype(np.float32)))
    assert not np.allclose(seen[:, 0], x[:, 0])  # shuffled
    other = torch.cat([b.x for b in source.epoch(1, 50, seed=0)]).numpy()
    assert not np.allclose(seen, other)


def test_an_epoch_can_start_at_any_batch(tmp_path):
    dataset, _ = parquet_folder(tmp_path)
    for source in (ArrowRows(dataset, 2, buffer=300), MemoryRows(banana(1000))):
        whole = [b.x for b in source.epoch(3, 64, seed=5)]
        rest = [b.x for b in source.epoch(3, 64, seed=5, skip=7)]
        assert len(rest) == len(whole) - 7
        assert all(torch.equal(a, b) for a, b in zip(whole[7:], rest, strict=True))


def test_a_stream_trains_a_flow(tmp_path):
    dataset, _ = parquet_folder(tmp_path)
    result = fit(small_flow(), dataset, banana(200, 1), steps=60, batch_size=64, learning_rate=5e-3, progress=False)
    assert result.history[-1]["val_nll"] < result.history[0]["val_nll"] - 0.05


def test_a_stream_with_missing_values_is_refused(tmp_path):
    pa.parquet.write_table(pa.table({"a": [1.0, None], "b": [1.0, 2.0]}), tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match="missing"):
        fit(small_flow(), pa.dataset.dataset(str(tmp_path)), steps=1, progress=False)
