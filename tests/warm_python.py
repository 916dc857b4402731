"""A Python process that has imported Sinuflow and forks for every script it is sent."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import sys
import traceback

#: What most scripts import; every optimizer of PyTorch imports torch._dynamo.
MODULES = (
    "pyarrow.dataset",
    "torch._dynamo",
    "sinuflow.cli.app",
    "sinuflow.models.image_fitting",
    "sinuflow.models.table_fitting",
)


def serve() -> None:
    """Run the script of every line of standard input in a fork, and answer with its exit code."""
    for name in MODULES:
        importlib.import_module(name)
    sys.path[0] = ""  # as under `python -c`
    gc.collect()
    gc.freeze()  # or collections in the forks would copy the memory that they share
    answers = os.dup(1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.close(answers)
            become(**json.loads(line))
        _, status = os.waitpid(child, 0)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
    leave(0)


def become(code: str, arguments: list[str], cwd: str, env: dict[str, str], outputs: list[str]) -> None:
    """Be the process that `python -c code arguments` would start; does not return."""
    for number, path in enumerate([os.devnull, *outputs]):
        os.dup2(os.open(path, os.O_WRONLY if number else os.O_RDONLY), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)  # noqa: T201
    except BaseException:
        status = 1
        traceback.print_exc()
    leave(status)


def leave(status: int) -> None:
    """Exit without taking the interpreter down, which would take longer than most scripts."""
    atexit._run_exitfuncs()  # coverage writes its counts here
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()
