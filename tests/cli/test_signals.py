"""Signals at random moments lose no data and leave no temporary files.

SINUFLOW_CASES is the number of commands that get a signal.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

import sinuflow
from tests.cli.commands import Commands, Ended, handles_signals, restore_signals
from tests.processes import unmeasured

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into Linux's /proc")

CASES = int(os.environ.get("SINUFLOW_CASES", 6))
#: Which signals are sent, at first and perhaps a second time.
KINDS = [(s,) * n for n in (1, 2) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

FIT = ("fit", "t.csv", "-o", "m.safetensors", "--steps", 60)
SCORE = ("score", "model.safetensors", "t.csv", "-o", "out.csv", "--force")
SAMPLE = ("sample", "model.safetensors", "-n", 3000, "--seed", 1, "-o", "out.csv", "--force")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    rows = np.random.default_rng(0).normal(size=(300, 3)).round(3)
    pd.DataFrame(rows, columns=["a", "b", "c"]).to_csv(folder / "t.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def commands(folder):
    return Commands(folder)


@pytest.fixture(scope="module")
def model(commands, folder) -> Path:
    """The model of an uninterrupted run."""
    assert commands.run(*FIT).code == 0
    shutil.move(folder / "m.safetensors", folder / "model.safetensors")
    return folder / "model.safetensors"


def moments(seconds: float, seed: int):
    """Signals and their times, for one third of the cases."""
    chance = random.Random(seed)
    kinds = itertools.islice(itertools.cycle(KINDS[seed:] + KINDS[:seed]), max(1, CASES // 3))
    for kind in kinds:
        first = chance.uniform(0, 1.1 * seconds)
        yield [(first + i * chance.uniform(0, 0.2 * seconds), int(number)) for i, number in enumerate(kind)]


def duration(commands: Commands, *arguments: object) -> float:
    """How long the command takes when nothing stops it."""
    times = []
    for _ in range(3 if CASES > 6 else 1):
        ended = commands.run(*arguments)
        assert ended.code == 0, ended.error
        times.append(ended.seconds)
    return statistics.median(times)


def check(
    ended: Ended, signals: list[tuple[float, int]], before: set[str], folder: Path, *, expected: set[str]
) -> None:
    """Check the exit code and the output of a command, and that only expected files are new."""
    number = signals[0][1]
    # Minus the number: the interpreter was shutting down already, with the signal's default action.
    assert ended.code in (0, 128 + number, -number), (signals, ended)
    assert "Traceback" not in ended.error, (signals, ended)
    assert "Exception ignored" not in ended.error, (signals, ended)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")} - before
    assert left <= expected, (signals, ended, left)


@pytest.mark.parametrize(("arguments", "seed"), [(SCORE, 0), (SAMPLE, 1)], ids=["score", "sample"])
def test_a_stopped_command_leaves_the_old_output_or_the_whole_new_one(commands, model, folder, arguments, seed):
    output = folder / "out.csv"
    seconds = duration(commands, *arguments)
    whole = output.read_bytes()
    for i, signals in enumerate(moments(seconds, seed)):
        output.unlink(missing_ok=True)
        if i % 2:
            output.write_bytes(b"precious")
        before = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        ended = commands.run(*arguments, signals=signals)
        check(ended, signals, before, folder, expected={"out.csv"})
        found = output.read_bytes() if output.exists() else None
        assert found in ((b"precious" if i % 2 else None), whole), signals
        assert ended.code != 0 or found == whole, signals
    output.unlink(missing_ok=True)


def test_a_stopped_run_resumes_to_the_same_model(commands, model, folder):
    output, run = folder / "m.safetensors", folder / "m.safetensors.run"
    checkpoint, history = "m.safetensors.run/checkpoint.safetensors", "m.safetensors.run/history.jsonl"
    seconds = duration(commands, *FIT, "--force")
    reference = weights(model)
    for signals in moments(seconds, 2):
        output.unlink(missing_ok=True)
        before = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        ended = commands.run(*FIT, signals=signals)
        check(ended, signals, before, folder, expected={output.name, run.name, checkpoint, history})
        assert output.exists() != run.exists() or not output.exists(), (signals, ended)
        assert ended.code != 0 or output.exists(), (signals, ended)
        reported = re.findall(r"^step (\d+)/", ended.error, re.MULTILINE)
        if not output.exists() and (reported or run.exists()):
            # Once training has begun there is a checkpoint, and it is of the last finished step.
            assert "--resume" in ended.error, (signals, ended)
            with safe_open(folder / checkpoint, framework="pt") as file:
                assert json.loads(file.metadata()["config"])["step"] == int(reported[-1]), (signals, ended)
        if not output.exists():
            resumed = commands.run(*FIT, "--resume")
            assert resumed.code == 0, (signals, resumed)
        assert not run.exists(), signals
        assert all(a.equal(b) for a, b in zip(weights(output), reference, strict=True)), signals
    output.unlink(missing_ok=True)


def weights(path: Path) -> list:
    return list(sinuflow.load(path).flow.state_dict().values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_imported_prints_no_traceback(number, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "sinuflow", "--help"],
        cwd=tmp_path, env=unmeasured(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=restore_signals,
    )  # fmt: skip
    while not handles_signals(process.pid):
        time.sleep(0.001)
    process.send_signal(number)
    _, error = process.communicate()
    assert (process.returncode, error) == (128 + number, "interrupted\n")
