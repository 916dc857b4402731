"""Running another Python in a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path


def unmeasured(**more: str) -> dict[str, str]:
    """The environment without coverage's own hook in it.

    For a process that is not this source (a wheel), or that is killed or kept from
    writing: there coverage would count the wrong files, or fail to save what it counted.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")} | more


def python(
    code: str, *arguments: object, cwd: Path | str = ".", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The outcome of `python -c code arguments`, in a fork of a process that has imported Sinuflow already.

    Importing takes longer than most commands. What depends on a fresh interpreter (its first
    imports, PYTHONHASHSEED, being killed) needs `subprocess.run` instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        for output in outputs:
            output.touch()
        request = {
            "code": code,
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(Path(cwd).absolute()),
            "env": dict(os.environ) if env is None else env,
            "outputs": [str(output) for output in outputs],
        }
        server = _warm_python()
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        texts = [output.read_text() for output in outputs]
    return subprocess.CompletedProcess(["python", "-c", code, *request["arguments"]], status, *texts)


@lru_cache(maxsize=1)
def _warm_python() -> subprocess.Popen[str]:
    script = Path(__file__).with_name("warm_python.py")
    return subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def stop_warm_python() -> None:
    """End the process if there is one, so that coverage has its counts before they are combined."""
    if _warm_python.cache_info().currsize:
        with _warm_python():
            pass
        _warm_python.cache_clear()
