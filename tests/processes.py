"""Running Python scripts in other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def unmeasured(**more: str) -> dict[str, str]:
    """The environment without coverage's hook.

    For a process that runs other sources (a wheel), or that is killed or cannot write: coverage would measure the wrong
    files, or fail to save.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")} | more


class ForkServer:
    """Runs scripts one at a time in forks of a process that has imported Sinuflow, which takes longer than they do."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._outputs = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment,
        )  # fmt: skip

    def start(self, code: str, *arguments: object, cwd: Path | str = ".", env: dict[str, str] | None = None) -> int:
        """Start `python -c code arguments`, and return its process number."""
        self._command = ["python", "-c", code, *map(str, arguments)]
        self._files = [Path(self._outputs.name, name) for name in ("stdout", "stderr")]
        request = {
            "code": code,
            "arguments": self._command[3:],
            "cwd": str(Path(cwd).absolute()),
            "env": self._environment if env is None else env,
            "outputs": [str(file) for file in self._files],
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self) -> subprocess.CompletedProcess[str]:
        """The outcome of the script; its process number stays valid until the next start."""
        status = self._answer()
        return subprocess.CompletedProcess(self._command, status, *(f.read_text(errors="replace") for f in self._files))

    def close(self) -> None:
        """End the process, so that coverage has its counts."""
        self._process.communicate()
        self._outputs.cleanup()

    def _answer(self) -> int:
        assert self._process.stdout
        return int(self._process.stdout.readline())


def python(
    code: str, *arguments: object, cwd: Path | str = ".", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The outcome of `python -c code arguments`, by a :class:`ForkServer`.

    Tests of a fresh interpreter (its imports, PYTHONHASHSEED, being killed) need `subprocess.run` instead.
    """
    server(measured=True).start(code, *arguments, cwd=cwd, env=dict(os.environ) if env is None else env)
    return server(measured=True).wait()


_servers: dict[bool, ForkServer] = {}


def server(measured: bool) -> ForkServer:
    """The shared server; scripts that are killed need one without coverage."""
    if measured not in _servers:
        _servers[measured] = ForkServer(dict(os.environ) if measured else unmeasured(COLUMNS="120", NO_COLOR="1"))
    return _servers[measured]


def stop_servers() -> None:
    """End the servers that run."""
    while _servers:
        _servers.popitem()[1].close()
