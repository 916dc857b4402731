"""What an output may replace, who may write it, and what reaches the terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import sinuflow
from sinuflow import StorageError
from sinuflow.cli import fit
from sinuflow.cli.app import app
from sinuflow.cli.files import claim_output
from sinuflow.cli.terminal import echo
from sinuflow.files import lock_beside, locked, write_atomically
from sinuflow.training.progress import Lines
from tests.cli.commands import Commands, restore_signals


class Context(ExitStack):
    """The part of a command's context that outputs use."""

    with_resource = ExitStack.enter_context


def claim(output: Path, *inputs: Path) -> None:
    with Context() as ctx:
        claim_output(ctx, output, True, inputs)


def linked(kind: str, source: Path, link: Path) -> Path:
    if kind == "hard":
        os.link(source, link)
    elif kind == "symbolic":
        link.symlink_to(source)
    elif kind == "folder":
        link.symlink_to(source.parent)
        return link / source.name
    else:
        return source.parent / ".." / source.parent.name / source.name
    return link


@pytest.mark.parametrize("kind", ["hard", "symbolic", "folder", "dots"])
def test_an_output_is_never_an_input_whatever_links_lead_to_it(tmp_path, kind):
    source = tmp_path / "t.csv"
    source.write_bytes(b"precious")
    link = linked(kind, source, tmp_path / "link")
    for output, data in ((link, source), (source, link)):
        with pytest.raises(StorageError, match="different files"):
            claim(output, data)
    other = tmp_path / "other.csv"
    other.write_bytes(b"")
    claim(other, source, link)


def test_two_outputs_are_never_one_file_before_either_exists(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="different files"):
        claim(tmp_path / "link" / "m", tmp_path / "m")


def test_an_output_is_never_a_file_of_an_input_folder(tmp_path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "loop").symlink_to(folder)
    part = folder / "sub" / "0.parquet"
    part.write_bytes(b"precious")
    os.link(part, tmp_path / "hard.parquet")
    for output in (part, tmp_path / "hard.parquet"):
        with pytest.raises(StorageError, match="different files"):
            claim(output, folder)
    claim(folder / "new.parquet", folder)


def test_every_command_checks_all_of_its_inputs(tmp_path, monkeypatch):
    checked = {}

    def claiming(ctx, path, force, inputs, formats=None):
        checked[path.name] = {other.name for other in inputs if other is not None}
        if path.name != "m":
            raise StorageError("stop")

    for module in ("fit", "score", "sample", "report"):
        monkeypatch.setattr(f"sinuflow.cli.{module}.claim_output", claiming)
    monkeypatch.setattr("sinuflow.cli.sample.load_fitted", lambda path: None)
    for arguments in (
        "fit data -o m --report r --labels labels",
        "score model data -o s --labels labels",
        "sample model -n 3 -o d",
        "report model data -o p",
    ):
        assert isinstance(CliRunner().invoke(app, arguments.split()).exception, StorageError)
    assert checked == {
        "m": {"data", "labels"},
        "r": {"data", "labels", "m"},
        "s": {"model", "data", "labels"},
        "d": {"model"},
        "p": {"model", "data"},
    }


def test_a_name_that_is_too_long_is_refused_before_any_work(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    refused = []
    for length in range(longest - 30, longest + 3):
        path = tmp_path / ("n" * (length - 4) + ".csv")
        try:
            claim(path)
        except StorageError as error:
            refused.append(str(error))
        else:
            write_atomically(path, b"rows")
            path.unlink()
        assert not list(tmp_path.iterdir())
    assert 3 <= len(refused) < 30
    assert all(message.endswith("File name too long") for message in refused)


def test_force_replaces_no_fifo_and_no_device(tmp_path):
    fifo, device = tmp_path / "fifo.csv", tmp_path / "null.csv"
    os.mkfifo(fifo)
    device.symlink_to("/dev/null")
    for output in (fifo, device):
        with pytest.raises(StorageError, match="not a regular file"):
            claim(output)


def test_an_output_is_locked_until_the_command_ends(tmp_path):
    output = tmp_path / "s.csv"
    with Context() as ctx:
        claim_output(ctx, output, False, [])
        with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
            claim(output)
    claim(output)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    return Commands(tmp_path_factory.mktemp("outputs"))


def test_a_second_process_names_the_holder_of_an_output_and_changes_nothing(commands):
    folder = commands.folder
    with locked(lock_beside(folder / "m.safetensors"), "x"):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        ended = commands.run("fit", "t.csv", "-o", "m.safetensors")
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert ended.code == 1
    assert ended.error.startswith(f"error: m.safetensors is in use by process {os.getpid()} on ")
    assert len(ended.error.splitlines()) == 1


def test_a_run_that_is_in_use_is_not_removed(commands):
    run = commands.folder / "used.safetensors.run"
    run.mkdir()
    (run / "checkpoint.safetensors").write_bytes(b"precious")
    with locked(run / ".lock", run):
        ended = commands.run("fit", "t.csv", "-o", "used.safetensors", "--force")
    assert ended.code == 1
    assert "used.safetensors.run is in use by process" in ended.error
    assert [path.name for path in run.iterdir()] == ["checkpoint.safetensors"]


def test_control_characters_of_files_do_not_reach_the_terminal(commands):
    folder = commands.folder
    values = np.arange(30.0)
    values[20] = np.nan
    pd.DataFrame({"a\x1b[2J\u202e": values, "b": values}).to_csv(folder / "e\x1b]0;x\x07.csv", index=False)
    refused = ("fit", "e\x1b]0;x\x07.csv", "-o", "e.safetensors", "--missing", "refuse")
    for arguments in (refused, ("info", "no\nsuch\x9bfile")):
        ended = commands.run(*arguments)
        assert ended.code == 1
        assert len(ended.error.splitlines()) == 1
        assert not set(ended.error) & set("\x1b\x07\x9b\u202e"), repr(ended.error)
    assert r"\x1b[2J\u202e" in commands.run(*refused).error


def test_progress_and_all_output_of_commands_are_printed_safely(capsys):
    Lines().say("going on\x1b[2J")
    assert capsys.readouterr().err == "going on\\x1b[2J\n"
    echo("model: \x1b[2J\n")
    assert capsys.readouterr().out == "model: \\x1b[2J\\n\n"
    sources = [path for path in Path(fit.__file__).parent.glob("*.py") if "typer.echo" in path.read_text()]
    assert [path.name for path in sources] == ["terminal.py"]


def test_checkpoint_minutes_are_passed_on(tmp_path, monkeypatch):
    given = []

    def fitting(*_, **options):
        given.append(options["checkpoint_minutes"])
        raise StorageError("stop")

    monkeypatch.setattr(fit, "fit_table", fitting)
    monkeypatch.setattr("sinuflow.models.fitted.fit", fitting)
    for minutes in ((), ("--checkpoint-minutes", "0.5")):
        CliRunner().invoke(app, ["fit", "t.csv", "-o", str(tmp_path / "m"), *minutes])
    images = np.zeros((30, 1, 4, 4), dtype=np.uint8)
    for fit_it, data in ((sinuflow.fit_table, np.random.default_rng(0).normal(size=(50, 2))),
                         (sinuflow.fit_images, images)):  # fmt: skip
        for options in ({"checkpoint_minutes": 2.0}, {"training": {"checkpoint_minutes": 3.0}}):
            with pytest.raises(StorageError):
                fit_it(data, progress=False, **options)
    assert given == [5.0, 0.5, 2.0, 3.0, 2.0, 3.0]


def test_a_terminal_that_closes_saves_a_checkpoint(commands):
    """Its processes get SIGHUP, and can no longer write to it."""
    folder = commands.folder
    rows = np.random.default_rng(0).normal(size=(300, 2))
    pd.DataFrame(rows, columns=["a", "b"]).to_csv(folder / "t.csv", index=False)
    child, terminal = os.forkpty()
    if child == 0:
        restore_signals()
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-m", "sinuflow", "fit", "t.csv", "-o", "h.safetensors"])
    history = folder / "h.safetensors.run" / "history.jsonl"
    while not (history.exists() and history.read_text().count("\n") >= 2):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert sorted(path.name for path in history.parent.iterdir()) == ["checkpoint.safetensors", "history.jsonl"]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
