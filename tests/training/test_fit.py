"""Training: it learns, it repeats, it goes on, and it survives."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import torch

import sinuflow
from sinuflow import ArgumentError, SinusoidalFlow, StorageError, TrainingError, fit
from sinuflow.training import ArrowRows, MemoryRows
from sinuflow.training.trainer import Trainer
from tests.processes import unmeasured


def banana(rows: int, seed: int = 0) -> torch.Tensor:
    """A crescent, standardised."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    x[:, 1] = 0.7 * x[:, 0] ** 2 + 0.3 * x[:, 1]
    return (x - x.mean(0)) / x.std(0)


def small_flow(seed: int = 0, **options: object) -> SinusoidalFlow:
    torch.manual_seed(seed)
    return SinusoidalFlow(2, conditioning="full", **{"blocks": 2, "hidden": (16, 16), **options})


def weights_of(flow: SinusoidalFlow) -> list[torch.Tensor]:
    return [t.clone() for t in flow.state_dict().values()]


def nll(flow: SinusoidalFlow, x: torch.Tensor) -> float:
    with torch.no_grad():
        return -float(flow().log_prob(x).mean())


def quick(flow: SinusoidalFlow, **options: object) -> sinuflow.FitResult:
    settings = {"steps": 60, "batch_size": 64, "validate_every": 20, "progress": False, "device": "cpu"}
    return fit(flow, banana(400), banana(200, seed=1), **{**settings, **options})


def test_it_learns_what_a_gaussian_cannot():
    gaussian = math.log(2 * math.pi) + 1  # of a standardised table without correlation
    result = fit(small_flow(), banana(2000), banana(500, 1), steps=250, batch_size=128, progress=False, device="cpu")
    assert result.best_nll < gaussian - 0.3
    assert not result.flow.training
    assert nll(result.flow, banana(500, 1)) == pytest.approx(result.best_nll, abs=1e-4)


def test_the_best_weights_are_returned_not_the_last():
    flow = small_flow()
    result = quick(flow, steps=200, learning_rate=0.05, schedule="constant")
    nlls = {r["step"]: r["val_nll"] for r in result.history}
    assert result.best_step == min(nlls, key=nlls.get)
    assert nll(flow, banana(200, seed=1)) == pytest.approx(min(nlls.values()), abs=1e-4)


def test_the_same_seed_gives_the_same_weights_and_another_others():
    first, again, other = small_flow(), small_flow(), small_flow()
    quick(first, seed=1)
    quick(again, seed=1)
    quick(other, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(again), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(other), strict=True))


def test_the_callers_random_state_is_left_alone():
    flow = small_flow()
    before = torch.get_rng_state()
    quick(flow, steps=5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "exponential", "plateau"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_schedule_and_optimiser_lowers_the_loss(schedule, optimizer):
    result = quick(small_flow(), schedule=schedule, optimizer=optimizer, learning_rate=5e-3, weight_decay=1e-4)
    assert result.history[-1]["val_nll"] < result.history[0]["val_nll"] - 0.05


def test_early_stopping_stops():
    result = quick(small_flow(), steps=2000, learning_rate=0.05, schedule="constant", patience=2)
    assert result.steps < 2000
    nlls = [r["val_nll"] for r in result.history]
    assert min(nlls) == nlls[-3]


def test_the_average_of_weights_is_what_is_validated_and_returned():
    flow = small_flow()
    result = quick(flow, ema=0.9)
    assert nll(flow, banana(200, seed=1)) == pytest.approx(result.best_nll, abs=1e-4)
    plain = small_flow()
    quick(plain)
    assert not all(torch.equal(a, b) for a, b in zip(weights_of(flow), weights_of(plain), strict=True))


def test_without_validation_the_last_weights_are_returned():
    result = fit(small_flow(), banana(200), steps=30, batch_size=64, progress=False, device="cpu")
    assert result.best_nll is None
    assert result.best_step == result.steps == 30


def test_context_is_learned():
    torch.manual_seed(0)
    c = torch.randn(1500, 1)
    x = 2 * c + 0.1 * torch.randn(1500, 1)
    x = x / x.std()
    flow = SinusoidalFlow(1, context=1, conditioning="full", blocks=2, hidden=(16, 16))
    fit(flow, (x, c), steps=300, learning_rate=5e-3, progress=False, device="cpu")
    with torch.no_grad():
        assert float(flow(c[:100]).log_prob(x[:100]).mean()) > 0.5  # the unconditional one has -1.4


def test_the_final_affine_map_is_initialised_from_the_data():
    flow = SinusoidalFlow(2, blocks=1, hidden=(8,))
    x = banana(500) * 100 + 1000
    result = fit(flow, x, x, steps=1, learning_rate=1e-9, progress=False, device="cpu")
    assert result.history[0]["val_nll"] < 13  # a standard normal would have a million


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.numpy(),
        lambda x: pd.DataFrame(x.numpy(), columns=["a", "b"]),
        lambda x: pl.DataFrame(x.numpy(), schema=["a", "b"]),
        lambda x: x.tolist(),
    ],
    ids=["numpy", "pandas", "polars", "lists"],
)
def test_data_come_in_many_forms(convert):
    reference, flow = small_flow(), small_flow()
    fit(reference, banana(300), steps=10, progress=False, device="cpu")
    fit(flow, convert(banana(300)), steps=10, progress=False, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(reference), weights_of(flow), strict=True))


# ---------------------------------------------------------------- streams


def parquet_folder(folder, rows=1000, files=4):
    x = banana(rows).numpy().astype(np.float64)
    for i, part in enumerate(np.array_split(x, files)):
        pa.parquet.write_table(pa.table({"a": part[:, 0], "b": part[:, 1]}), folder / f"{i}.parquet")
    return pa.dataset.dataset(str(folder)), x


def test_an_arrow_dataset_is_streamed_and_every_row_is_seen_once_per_epoch(tmp_path):
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


def test_an_epoch_can_be_entered_anywhere(tmp_path):
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


# ---------------------------------------------------------------- checkpoints


class StopError(Exception):
    pass


def stopping_at(monkeypatch, step):
    """Make training fail after a step, as a crash would."""
    original = Trainer._step

    def stepping(self, batch):
        if self.step == step:
            raise StopError
        return original(self, batch)

    monkeypatch.setattr(Trainer, "_step", stepping)


@pytest.mark.parametrize(
    "options",
    [{}, {"ema": 0.9, "dropout": 0.2, "schedule": "plateau"}, {"optimizer": "adamw", "patience": 50}],
    ids=["plain", "dropout and average", "adamw"],
)
def test_a_resumed_run_ends_with_the_very_same_weights(tmp_path, monkeypatch, options):
    options = dict(options)
    network = {"dropout": options.pop("dropout", 0.0)}
    whole = small_flow(**network)
    reference = quick(whole, steps=80, **options)
    broken = small_flow(**network)
    with monkeypatch.context() as patch:
        stopping_at(patch, 47)
        with pytest.raises(StopError):
            quick(broken, steps=80, checkpoint=tmp_path, checkpoint_steps=10, **options)
    fresh = small_flow(seed=9, **network)  # nothing of the old process is left
    result = quick(fresh, steps=80, checkpoint=tmp_path, checkpoint_steps=10, resume=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(fresh), strict=True))
    assert [r["val_nll"] for r in result.history] == [r["val_nll"] for r in reference.history]
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [r["step"] for r in result.history]


def test_a_resumed_stream_goes_on_where_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    dataset, _ = parquet_folder(folder)
    settings = {"steps": 40, "batch_size": 64, "progress": False, "device": "cpu"}
    whole, broken, fresh = small_flow(), small_flow(), small_flow(seed=4)
    fit(whole, dataset, **settings)
    with monkeypatch.context() as patch:
        stopping_at(patch, 25)
        with pytest.raises(StopError):
            fit(broken, dataset, checkpoint=tmp_path / "run", checkpoint_steps=9, **settings)
    fit(fresh, dataset, checkpoint=tmp_path / "run", checkpoint_steps=9, resume=True, **settings)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(fresh), strict=True))


SCRIPT = textwrap.dedent("""
    import os, sys, torch
    sys.path.insert(0, os.environ["TESTS"])
    torch.set_num_threads(1)
    from training.test_fit import quick, small_flow
    import sinuflow.storage as storage
    folder, kill_at = sys.argv[1], int(sys.argv[2])
    if kill_at:
        real, count = os.fsync, [0]
        def dying(handle):  # the file is written but not yet in place
            count[0] += 1
            if count[0] == kill_at:
                os.kill(os.getpid(), 9)
            real(handle)
        os.fsync = dying
    flow = small_flow()
    quick(flow, steps=60, checkpoint=folder, checkpoint_steps=10, resume=True)
    flow.save(os.path.join(folder, "final.safetensors"))
""")


def test_kill_9_in_the_middle_of_a_save_loses_nothing(tmp_path):
    tests = os.path.dirname(os.path.dirname(__file__))
    environment = unmeasured(TESTS=tests, PYTHONPATH=os.pathsep.join([tests, *sys.path]))

    def run(kill_at):
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(kill_at)], env=environment, capture_output=True
        )

    killed = run(3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert list(tmp_path.glob(".*.part"))  # what was being written is there, and is not the checkpoint
    finished = run(0)
    assert finished.returncode == 0, finished.stderr.decode()
    assert not list(tmp_path.glob(".*.part"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = small_flow()
    quick(whole, steps=60)
    torch.set_num_threads(threads)
    found = sinuflow.load(tmp_path / "final.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(found), strict=True))


def test_a_finished_run_is_not_repeated(tmp_path):
    quick(small_flow(), checkpoint=tmp_path)
    again = quick(small_flow(seed=5), checkpoint=tmp_path, resume=True)
    assert again.steps == 60


def test_a_run_is_never_overwritten_by_accident(tmp_path):
    quick(small_flow(), checkpoint=tmp_path)
    with pytest.raises(TrainingError, match="resume=True"):
        quick(small_flow(), checkpoint=tmp_path)
    with pytest.raises(TrainingError, match="batch_size was 64, now 32"):
        quick(small_flow(), checkpoint=tmp_path, resume=True, batch_size=32)


def test_a_model_file_is_not_taken_for_a_checkpoint(tmp_path):
    small_flow().save(tmp_path / "checkpoint.safetensors")
    with pytest.raises(StorageError, match="not a checkpoint"):
        quick(small_flow(), checkpoint=tmp_path, resume=True)


def test_ctrl_c_saves_a_checkpoint_between_two_steps(tmp_path, monkeypatch):
    original = Trainer._step

    def stepping(self, batch):
        if self.step == 33:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stepping)
        with pytest.raises(KeyboardInterrupt):
            quick(small_flow(), checkpoint=tmp_path)
    whole, resumed = small_flow(), small_flow(seed=3)
    quick(whole)
    quick(resumed, checkpoint=tmp_path, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))
    assert signal.getsignal(signal.SIGINT) == before


# ---------------------------------------------------------------- divergence


def test_one_bad_batch_is_skipped():
    x = banana(512)
    x[7] = 1e30
    flow = small_flow()
    result = fit(flow, x, banana(100, 1), steps=64, batch_size=64, validate_every=16, progress=False, device="cpu")
    assert result.history[-1]["skipped"] >= 4  # once an epoch, after the guard knows what is usual
    assert math.isfinite(result.best_nll)


def test_a_run_that_diverges_goes_back_and_then_gives_up(monkeypatch):
    original = Trainer._step
    flow = small_flow()

    def stepping(self, batch):
        if self.step >= 40:
            with torch.no_grad():
                next(iter(flow.parameters())).fill_(torch.nan)
        return original(self, batch)

    monkeypatch.setattr(Trainer, "_step", stepping)
    with (
        pytest.warns(UserWarning, match="back to the last good weights"),
        pytest.raises(TrainingError, match="learning rate"),
    ):
        quick(flow, steps=500)


def test_a_run_that_recovers_ends_well(monkeypatch):
    original = Trainer._step
    flow = small_flow()

    def stepping(self, batch):
        if self.step == 30:
            with torch.no_grad():
                for parameter in flow.parameters():
                    parameter.fill_(torch.nan)
        return original(self, batch)

    monkeypatch.setattr(Trainer, "_step", stepping)
    with pytest.warns(UserWarning, match="diverged at step"):
        result = quick(flow, steps=120, schedule="constant", warmup=0)
    assert result.history[-1]["learning_rate"] == pytest.approx(0.3 * result.history[0]["learning_rate"])
    assert math.isfinite(result.history[-1]["val_nll"])
    assert result.history[-1]["val_nll"] < result.history[0]["val_nll"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (torch.zeros(10, 3), "2 columns"),
        (torch.zeros(10), "two dimensions"),
        (torch.zeros(0, 2), "no rows"),
        (torch.full((5, 2), torch.nan), "NaN or infinite in 5 rows"),
        ((torch.zeros(5, 2), torch.zeros(5, 1)), "context=0"),
        (np.array([["a", "b"]]), "numeric"),
    ],
)
def test_wrong_data_are_refused(train, message):
    with pytest.raises(ArgumentError, match=message):
        fit(small_flow(), train, steps=1, progress=False)


def test_a_context_must_fit():
    flow = SinusoidalFlow(2, context=1, blocks=1, hidden=(4,))
    with pytest.raises(ArgumentError, match="pair"):
        fit(flow, torch.zeros(5, 2), steps=1, progress=False)
    with pytest.raises(ArgumentError, match=r"\(5, 1\)"):
        fit(flow, (torch.zeros(5, 2), torch.zeros(4, 1)), steps=1, progress=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("batch_size", 0),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("optimizer", "sgd"),
        ("schedule", "linear"),
        ("warmup", -1),
        ("weight_decay", -0.1),
        ("clip", 0.0),
        ("ema", 1.0),
        ("patience", 0),
        ("validate_every", 0),
        ("seed", "x"),
        ("device", "abacus"),
    ],
)
def test_wrong_settings_are_refused_by_name(option, value):
    with pytest.raises(ArgumentError, match=option):
        quick(small_flow(), **{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_not_used():
    with pytest.raises(ArgumentError, match="no GPU"):
        quick(small_flow(), device="cuda")


def test_an_unwritable_folder_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="checkpoints"):
        quick(small_flow(), checkpoint=tmp_path / "file" / "run")


def test_history_and_tensorboard_are_written(tmp_path):
    result = quick(small_flow(), history=tmp_path / "h.jsonl", tensorboard=tmp_path / "board")
    records = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [0, 20, 40, 60]
    assert records[0]["train_nll"] is None
    assert records[-1]["val_nll"] == result.history[-1]["val_nll"]
    assert list((tmp_path / "board").glob("events.*"))
