"""Progress of training runs."""

from __future__ import annotations

import io
import sys

import pytest

from sinuflow.training import progress
from sinuflow.training.progress import Bar, Lines, Progress, Status, make_progress
from tests.training.small import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def status(step: int) -> Status:
    return Status(step, 100, 1.5, 1.25, 12_345.6)


def test_lines_every_ten_seconds_and_at_the_end(clock):
    stream = io.StringIO()
    lines = Lines(stream)
    for step in range(1, 31):
        clock.now = float(step)
        lines.show(status(step))
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["10/100", "20/100", "30/100"]
    assert "loss 1.5000  best validation 1.2500  12,346 rows/s" in stream.getvalue()
    assert stream.getvalue().splitlines()[0].endswith("1:30 left")
    lines.show(status(100))
    lines.close()
    assert stream.getvalue().splitlines()[-1].startswith("step 100/100")
    assert "left" not in stream.getvalue().splitlines()[-1]


def test_remaining_hours(clock):
    stream = io.StringIO()
    lines = Lines(stream)
    clock.now = 600.0
    lines.show(status(1))
    assert stream.getvalue().strip().endswith("16:30:00 left")


def test_the_remaining_time_of_a_limited_one(clock):
    stream = io.StringIO()
    lines = Lines(stream)
    for step in (1, 2):
        clock.now = 15.0 * step
        lines.show(Status(step, None, 1.5, 1.25, 12_345.6, elapsed=0.25 * step))
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1", "2"]
    assert stream.getvalue().strip().endswith("0:30 left")
    lines.show(Status(4, None, 1.5, 1.25, 12_345.6, elapsed=1.0))
    lines.close()
    assert "left" not in stream.getvalue().splitlines()[-1]


def test_a_bar_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = make_progress(True)
    assert isinstance(bar, Bar)
    bar.show(status(50))
    bar.say("[hello]")
    bar.show(status(100))
    bar.close()
    shown = capsys.readouterr().err
    assert "100/100" in shown
    assert "[hello]" in shown


def test_lines_in_a_terminal_without_rich(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(make_progress(True), Lines)


def test_no_progress_if_disabled(capsys):
    progress = make_progress(False)
    assert type(progress) is Progress
    progress.show(status(1))
    progress.say("nothing")
    progress.close()
    assert capsys.readouterr().err == ""
