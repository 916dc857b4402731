"""Runs commands in processes forked from one that has imported PyTorch, which saves a second for each.

Run as a script, this is that process: it reads requests from its standard input, a JSON object a line, and answers each
with the child's process number, and then with how it ended. The child stays a zombie until the next request, so that
its number cannot be given to another process while signals are sent to it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from sinuflow.signals import STOP_SIGNALS
from tests.processes import unmeasured


class Ended(NamedTuple):
    """How a command ended: its exit code (minus the signal that killed it), its error output, and how long it ran."""

    code: int
    error: str
    seconds: float


class Commands:
    """Runs commands in ``folder``, and sends them signals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        root = Path(__file__).parents[2]
        environment = unmeasured(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", COLUMNS="120", NO_COLOR="1")
        environment["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.commands_by_fork"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: object, signals: Sequence[tuple[float, int]] = ()) -> Ended:
        """Run a command; each signal is sent so many seconds after the command began to handle signals."""
        request = {"arguments": [str(a) for a in arguments], "folder": str(self.folder)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        child = int(self._answer())
        while not handles_signals(child):
            time.sleep(0.001)
        start = time.monotonic()
        for after, number in signals:
            time.sleep(max(0.0, start + after - time.monotonic()))
            os.kill(child, number)
        code, error = json.loads(self._answer())
        return Ended(code, error, time.monotonic() - start)

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def handles_signals(process: int) -> bool:
    """Whether a process has handlers for all of the signals, or has ended."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    caught = int(fields["SigCgt"], 16)
    return fields["State"].startswith("Z") or all(caught >> (number - 1) & 1 for number in STOP_SIGNALS)


def restore_signals() -> None:
    """Let signals have their default actions: shells start background jobs with SIGINT ignored, nohup with SIGHUP."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def serve() -> None:
    """Answer requests until there are no more."""
    from sinuflow.cli.main import run

    restore_signals()
    for module in ("pandas", "pyarrow.csv", "pyarrow.dataset", "torch._dynamo", "sinuflow.cli.app"):
        import_module(module)

    child = 0
    for line in sys.stdin:
        if child:
            os.waitpid(child, 0)
        request = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writer, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.close(reader)
            os.close(writer)
            os.chdir(request["folder"])
            sys.argv = ["sinuflow", *request["arguments"]]
            try:
                run()
            except SystemExit as stop:
                # Taking down all those modules would take longer than the command itself.
                os._exit(int(stop.code or 0))
        os.close(writer)
        print(child, flush=True)  # noqa: T201
        with os.fdopen(reader, errors="replace") as file:
            error = file.read()
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        print(json.dumps([code, error]), flush=True)  # noqa: T201
    if child:
        os.waitpid(child, 0)


if __name__ == "__main__":
    serve()
