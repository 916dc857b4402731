"""Atomic writes and locks, with failing writes and competing processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from sinuflow import SinuflowError, SinusoidalFlow, StorageError
from sinuflow.cli.files import write_rows
from sinuflow.cli.sample import _write_images
from sinuflow.data.image_files import write_png
from sinuflow.data.originals import _write_arrays as write_arrays
from sinuflow.files import append, locked, replacing, write_atomically
from sinuflow.paper.plotting import saved_figure
from sinuflow.paper.record import Result, write_record
from sinuflow.report import page
from sinuflow.training.checkpoint import Checkpoint, CheckpointFolder
from sinuflow.training.history import History
from tests.processes import unmeasured
from tests.training.small import quick, small_flow, weights_of

ROWS = [pa.record_batch({"a": np.random.default_rng(0).normal(size=5000)})]
IMAGES = torch.randint(256, (50, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
FLOW = SinusoidalFlow(2, blocks=1, hidden=(4,))


def save_checkpoint(path: Path) -> None:
    folder = CheckpointFolder(path.parent)
    folder.file = path
    folder.save(Checkpoint({"step": 3}, {"weights": FLOW.state_dict()}))


def draw_figure(path: Path) -> None:
    with saved_figure(path, 2, 2):
        pass


def start_history(path: Path) -> None:
    History(path).start([{"step": i} for i in range(100)])


WRITERS = {
    "model": ("m.safetensors", FLOW.save),
    "checkpoint": ("checkpoint.safetensors", save_checkpoint),
    "history": ("history.jsonl", start_history),
    "CSV": ("s.csv", lambda path: write_rows(path, ROWS)),
    "Parquet": ("s.parquet", lambda path: write_rows(path, ROWS)),
    "PNG": ("s.png", lambda path: write_png(path, IMAGES.view(1, 80, 40))),
    "npy": ("s.npy", lambda path: _write_images(path, IMAGES)),
    "split": ("train.npy", lambda path: write_arrays([path], [IMAGES.numpy()])),
    "report": ("r.html", lambda path: page.write("x" * 10_000, path)),  # type: ignore[arg-type]
    "record": ("x.json", lambda path: write_record(path, [Result("a", "b", "c", {0: 1.0})], "command", "cpu")),
    "figure": ("f.png", draw_figure),
    "drawing": ("f.svg", lambda path: FLOW.draw().save(path)),
}


@contextmanager
def full_disk(most: int = 100):
    """Writes are cut short at ``most`` bytes of a file, and then fail."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@contextmanager
def failing(call: str, number: int):
    """A system call that fails."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        yield


FAULTS = {
    "short write": full_disk,
    **{
        f"{call} {errno.errorcode[number]}": lambda call=call, number=number: failing(call, number)
        for call in ("fsync", "chmod", "replace", "scandir")
        for number in (errno.ENOSPC, errno.EIO)
    },
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, writer, fault):
    monkeypatch.setattr(page, "render", lambda content: content)
    name, write = WRITERS[writer]
    path = tmp_path / name
    write(path)
    whole = path.read_bytes()
    if writer != "record":  # which adds to what is there
        path.write_bytes(b"precious")
    for old in (path.read_bytes(), None):
        if old is None:
            path.unlink()
        with FAULTS[fault](), pytest.raises(StorageError, match=r"^cannot write .*\Z") as raised:
            write(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)
        assert [(p, p.read_bytes()) for p in tmp_path.iterdir()] == ([] if old is None else [(path, old)])
    write(path)
    assert len(path.read_bytes()) == len(whole)


def test_a_line_that_cannot_be_appended_leaves_no_part_of_it(tmp_path):
    path = tmp_path / "history.jsonl"
    append(path, b"first\n")
    with full_disk(10), pytest.raises(StorageError, match="cannot write"):
        append(path, b"second\n")
    assert path.read_bytes() == b"first\n"
    append(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_a_history_that_cannot_be_written_does_not_break_resuming(tmp_path, monkeypatch):
    original = History.add

    def adding(self, record):
        if record["step"] == 40:
            with full_disk((tmp_path / "history.jsonl").stat().st_size + 7):
                original(self, record)
        original(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(History, "add", adding)
        with pytest.raises(StorageError, match="history"):
            quick(small_flow(), checkpoint=tmp_path, checkpoint_steps=10)
    resumed, whole = small_flow(seed=3), small_flow()
    result = quick(resumed, checkpoint=tmp_path, resume=True)
    quick(whole)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(resumed), weights_of(whole), strict=True))
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(result.history)


# ---------------------------------------------------------------- what is replaced


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
def test_only_regular_files_are_replaced(tmp_path, kind, link):
    path = tmp_path / "special"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    if link:
        (tmp_path / "link").symlink_to(path)
    before = path.lstat()
    with pytest.raises(StorageError, match=r"not a regular file|a folder"):
        FLOW.save(tmp_path / "link" if link else path)
    assert os.path.samestat(path.lstat(), before)
    assert len(list(tmp_path.iterdir())) == 1 + link


def test_a_symbolic_link_is_replaced_itself_and_its_target_is_kept(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"precious")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert target.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


# ---------------------------------------------------------------- other processes


def process(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that imports only ``sinuflow.files``."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env=unmeasured(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


HOLDS = """
    import sys
    from pathlib import Path
    from sinuflow.files import locked, replacing
    path = Path(sys.argv[1])
    with locked(path.with_name("lock"), path), replacing(path) as temporary:
        Path(temporary).write_text("half")
        print("holds", flush=True)
        sys.stdin.read()
"""


def ended(other: subprocess.Popen[str]) -> None:
    other.communicate()


def test_the_holder_of_a_lock_is_named_and_left_alone(tmp_path):
    path, lock = tmp_path / "out", tmp_path / "lock"
    other = process(HOLDS, path)
    assert other.stdout.readline() == "holds\n"
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(StorageError, match=rf"out is in use by process {other.pid} on \S+ since \d{{4}}-"):
        locked(lock, path).__enter__()
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
    ended(other)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    path, lock = tmp_path / "out", tmp_path / "lock"
    killed, live = process(HOLDS, path), process(HOLDS.replace('"lock"', '"other"'), path)
    assert killed.stdout.readline() == live.stdout.readline() == "holds\n"
    killed.kill()
    ended(killed)
    assert len(list(tmp_path.glob(".out.*.part"))) == 2
    with locked(lock, path), replacing(path) as temporary:
        Path(temporary).write_text("new")
        assert len(list(tmp_path.glob(".out.*.part"))) == 2  # the live one's, and this one
    assert path.read_text() == "new"
    ended(live)
    assert path.read_text() == "half"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_only_one_process_at_a_time_holds_a_lock(tmp_path):
    script = """
        import sys
        from pathlib import Path
        from sinuflow import StorageError
        from sinuflow.files import locked
        folder, times = Path(sys.argv[1]), int(sys.argv[2])
        while times:
            try:
                with locked(folder / "lock", "counter"):
                    count = int((folder / "count").read_text())
                    (folder / "count").write_text(str(count + 1))
                    times -= 1
            except StorageError:
                pass
    """
    (tmp_path / "count").write_text("0")
    others = [process(script, tmp_path, 100) for _ in range(4)]
    for other in others:
        ended(other)
    assert (tmp_path / "count").read_text() == "400"
    assert not (tmp_path / "lock").exists()


def test_a_file_system_without_locks_is_no_obstacle(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
        with locked(tmp_path / "lock", "x"), locked(tmp_path / "lock", "x"):
            write_atomically(tmp_path / "out", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_lock_is_a_regular_file_and_no_link(tmp_path, kind):
    victim, lock = tmp_path / "victim", tmp_path / "lock"
    victim.write_text("precious")
    lock.symlink_to(victim) if kind == "link" else os.mkfifo(lock)
    with pytest.raises(SinuflowError, match="cannot lock"):
        locked(lock, "x").__enter__()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("content", ["precious", "process 1 on a since 2026-01-01 00:00:00\nprecious", ""])
def test_a_file_that_only_has_the_name_of_a_lock_is_kept(tmp_path, monkeypatch, content, locks):
    if not locks:
        monkeypatch.setattr("sinuflow.files._try_lock", lambda handle: None)
    victim, lock = tmp_path / "victim", tmp_path / "lock"
    victim.write_text(content)
    if content == "precious":
        victim.rename(lock)
    else:
        os.link(victim, lock)
    with pytest.raises(StorageError, match="lock is not a lock file of Sinuflow"):
        locked(lock, "x").__enter__()
    assert lock.read_text() == content


def test_the_lock_file_of_a_killed_process_is_taken_over(tmp_path):
    lock = tmp_path / "lock"
    with locked(lock, "x"):
        text = lock.read_text()
    assert not lock.exists()
    for left in (text, ""):
        lock.write_text(left)
        with locked(lock, "x"):
            assert lock.read_text().startswith(f"process {os.getpid()} on ")
        assert not lock.exists()


def test_a_run_folder_is_used_by_one_process(tmp_path):
    with (
        CheckpointFolder(tmp_path).locked(),
        pytest.raises(StorageError, match=rf"in use by process {os.getpid()}"),
    ):
        quick(small_flow(), checkpoint=tmp_path)
    quick(small_flow(), checkpoint=tmp_path, steps=3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "history.jsonl"]


assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # by Python: writes beyond the limit fail instead
