"""Checkpoints, resumption and signals."""

from __future__ import annotations

import json
import os
import signal
import textwrap

import pytest
import torch
from safetensors import safe_open

import sinuflow
from sinuflow import ArgumentError, StorageError, TrainingError, fit
from sinuflow.training.checkpoint import CheckpointFolder
from sinuflow.training.engine import EagerEngine
from sinuflow.training.trainer import Trainer
from tests.processes import python
from tests.training.small import parquet_folder, quick, small_flow, weights_of


class StopError(Exception):
    pass


def stopping_at(monkeypatch, step):
    """Make training fail after a step."""
    original = EagerEngine.advance

    def advancing(self, now, most):
        if now == step:
            raise StopError
        return original(self, now, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)


@pytest.mark.parametrize(
    "options",
    [{}, {"ema": 0.9, "dropout": 0.2, "schedule": "plateau"}, {"optimizer": "adamw", "patience": 50}],
    ids=["plain", "dropout and average", "adamw"],
)
def test_a_resumed_run_ends_with_identical_weights(tmp_path, monkeypatch, options):
    options = dict(options)
    network = {"dropout": options.pop("dropout", 0.0)}
    whole = small_flow(**network)
    reference = quick(whole, steps=80, **options)
    broken = small_flow(**network)
    with monkeypatch.context() as patch:
        stopping_at(patch, 47)
        with pytest.raises(StopError):
            quick(broken, steps=80, checkpoint=tmp_path, checkpoint_steps=10, **options)
    fresh = small_flow(seed=9, **network)  # nothing of the first process remains
    result = quick(fresh, steps=80, checkpoint=tmp_path, checkpoint_steps=10, resume=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(fresh), strict=True))
    assert [r["val_nll"] for r in result.history] == [r["val_nll"] for r in reference.history]
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [r["step"] for r in result.history]


def test_a_resumed_stream_continues_at_its_position(tmp_path, monkeypatch):
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
    from training.small import quick, small_flow
    import sinuflow.flows.storage as storage
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


def test_sigkill_during_a_save_keeps_the_previous_checkpoint(tmp_path):
    tests = os.path.dirname(os.path.dirname(__file__))

    def run(kill_at):
        return python(SCRIPT, tmp_path, kill_at, env=os.environ | {"TESTS": tests})

    killed = run(3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(tmp_path.glob(".*.part"))  # the partial file is not the checkpoint
    finished = run(0)
    assert finished.returncode == 0, finished.stderr
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


def test_a_run_is_overwritten_only_on_request(tmp_path):
    quick(small_flow(), checkpoint=tmp_path)
    with pytest.raises(TrainingError, match="resume=True"):
        quick(small_flow(), checkpoint=tmp_path)
    with pytest.raises(TrainingError, match="batch_size was 64, now 32"):
        quick(small_flow(), checkpoint=tmp_path, resume=True, batch_size=32)


def test_a_run_with_another_seed_or_flow_is_refused_with_the_first_difference(tmp_path):
    quick(small_flow(), checkpoint=tmp_path)
    narrower = small_flow(hidden=(5, 5))
    with pytest.raises(TrainingError, match=r"\(seed was 0, now 1\)"):
        quick(narrower, checkpoint=tmp_path, resume=True, seed=1)
    with pytest.raises(TrainingError, match=r"\(flow\.hidden was \[16, 16\], now \[5, 5\]\)"):
        quick(narrower, checkpoint=tmp_path, resume=True)


def test_a_model_file_is_not_a_checkpoint(tmp_path):
    small_flow().save(tmp_path / "checkpoint.safetensors")
    with pytest.raises(StorageError, match="not a checkpoint"):
        quick(small_flow(), checkpoint=tmp_path, resume=True)


def test_ctrl_c_saves_a_checkpoint_between_two_steps(tmp_path, monkeypatch):
    original = EagerEngine.advance

    def advancing(self, step, most):
        if step == 33:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, step, most)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(EagerEngine, "advance", advancing)
        with pytest.raises(KeyboardInterrupt):
            quick(small_flow(), checkpoint=tmp_path)
    whole, resumed = small_flow(), small_flow(seed=3)
    quick(whole)
    quick(resumed, checkpoint=tmp_path, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("minutes", [-1.0, float("nan")])
def test_minutes_between_checkpoints_are_not_negative(tmp_path, minutes):
    with pytest.raises(ArgumentError, match="checkpoint_minutes must be 0 or more"):
        quick(small_flow(), checkpoint=tmp_path / "run", checkpoint_minutes=minutes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("steps", [0, 2.5, True])
def test_steps_between_checkpoints_are_positive_integers(tmp_path, steps):
    with pytest.raises(ArgumentError, match="checkpoint_steps must be a whole number of at least 1"):
        quick(small_flow(), checkpoint=tmp_path / "run", checkpoint_steps=steps)
    assert not (tmp_path / "run").exists()


def send_at(monkeypatch, step, *numbers):
    """Send signals to this process within a step."""
    original = EagerEngine.advance

    def advancing(self, now, most):
        if now == step:
            for number in numbers:
                signal.raise_signal(number)
        return original(self, now, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)


def resumes_to_the_same_weights(folder):
    whole, resumed = small_flow(), small_flow(seed=3)
    quick(whole)
    quick(resumed, checkpoint=folder, resume=True)
    return all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))


def saved_step(folder):
    with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["config"])["step"]


def test_further_signals_do_not_interrupt_the_checkpoint(tmp_path, monkeypatch):
    original = CheckpointFolder.save

    def saving(self, checkpoint):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        original(self, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "save", saving)
        send_at(patch, 33, *[signal.SIGINT] * 3)
        with pytest.raises(KeyboardInterrupt):
            quick(small_flow(), checkpoint=tmp_path)
    assert saved_step(tmp_path) == 34
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "history.jsonl"]
    assert resumes_to_the_same_weights(tmp_path)


def test_a_signal_after_the_last_step_is_not_lost(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "finish", lambda self: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            quick(small_flow(), checkpoint=tmp_path)
    assert saved_step(tmp_path) == 60
    assert resumes_to_the_same_weights(tmp_path)


def test_without_a_checkpoint_the_second_signal_interrupts_the_step(monkeypatch):
    reached = []
    original = EagerEngine.advance

    def advancing(self, step, most):
        if step == 33:
            signal.raise_signal(signal.SIGINT)
            reached.append("after the first")
            signal.raise_signal(signal.SIGINT)
            reached.append("after the second")
        return original(self, step, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)
    with pytest.raises(KeyboardInterrupt):
        quick(small_flow())
    assert reached == ["after the first"]


def test_a_checkpoint_that_cannot_be_saved_is_reported(tmp_path, monkeypatch):
    def failing(self, checkpoint):
        raise StorageError("no space left")

    send_at(monkeypatch, 33, signal.SIGINT)
    monkeypatch.setattr(CheckpointFolder, "save", failing)
    with pytest.raises(StorageError, match="no space left"):
        quick(small_flow(), checkpoint=tmp_path)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, "own"])
def test_ignored_signals_and_user_handlers_are_unchanged(tmp_path, monkeypatch, handler):
    received = []
    handlers = {
        number: signal.signal(number, (lambda n, _: received.append(n)) if handler == "own" else handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        send_at(monkeypatch, 33, *handlers)
        assert quick(small_flow(), checkpoint=tmp_path).steps == 60
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)
    assert received == (list(handlers) if handler == "own" else [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_does_so_after_the_checkpoint(tmp_path, number):
    child = os.fork()
    if child == 0:
        signal.signal(number, signal.SIG_DFL)
        with pytest.MonkeyPatch.context() as patch:
            send_at(patch, 33, number)
            quick(small_flow(), checkpoint=tmp_path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -number
    assert saved_step(tmp_path) == 34
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "history.jsonl"]
    assert resumes_to_the_same_weights(tmp_path)


def test_a_continued_run_resumes_from_its_own_start_alone(tmp_path, monkeypatch):
    options = {"initialize": False, "steps": 40, "checkpoint_steps": 10}
    whole, broken, resumed, other = (small_flow() for _ in range(4))
    for flow in (whole, broken, resumed):
        quick(flow, steps=20)
    quick(whole, **options)
    with monkeypatch.context() as patch:
        stopping_at(patch, 27)
        with pytest.raises(StopError):
            quick(broken, checkpoint=tmp_path, **options)
    for flow, first in ((other, False), (resumed, True)):
        with pytest.raises(TrainingError, match="another starting model"):
            quick(flow, checkpoint=tmp_path, resume=True, **{**options, "initialize": first})
    quick(resumed, checkpoint=tmp_path, resume=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))
