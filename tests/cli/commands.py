"""Running commands that are sent signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sinuflow.signals import STOP_SIGNALS
from tests.processes import server

SCRIPT = "import sys; sys.argv[0] = 'sinuflow'; from sinuflow.cli.main import run; run()"


class Ended(NamedTuple):
    """How a command ended: exit code (minus the signal that killed it), error output and duration."""

    code: int
    error: str
    seconds: float


class Commands:
    """Runs commands in ``folder``, and sends them signals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = server(measured=False)

    def run(self, *arguments: object, signals: Sequence[tuple[float, int]] = ()) -> Ended:
        """Run a command, with signals at times (in seconds) after it began to handle signals."""
        process = self._server.start(SCRIPT, *arguments, cwd=self.folder)
        while not handles_signals(process):
            time.sleep(0.001)
        start = time.monotonic()
        for after, number in signals:
            time.sleep(max(0.0, start + after - time.monotonic()))
            os.kill(process, number)
        done = self._server.wait()
        return Ended(done.returncode, done.stderr, time.monotonic() - start)


def handles_signals(process: int) -> bool:
    """Whether a process has handlers for all stop signals, or has ended."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    caught = int(fields["SigCgt"], 16)
    return fields["State"].startswith("Z") or all(caught >> (number - 1) & 1 for number in STOP_SIGNALS)


def restore_signals() -> None:
    """Let signals have their default actions: shells start background jobs with SIGINT ignored, nohup with SIGHUP."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
