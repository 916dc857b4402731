"""A Python process that has imported Sinuflow and forks for every script: see ``processes.ForkServer``."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import traceback

from sinuflow.signals import STOP_SIGNALS

#: What most scripts import; every optimizer of PyTorch imports torch._dynamo.
MODULES = (
    "pandas",
    "pyarrow.csv",
    "pyarrow.dataset",
    "torch._dynamo",
    "sinuflow.cli.app",
    "sinuflow.models.image_fitting",
    "sinuflow.models.table_fitting",
)


def serve() -> None:
    """For every line of standard input, run its script in a fork; print the fork's process number and exit code.

    A fork stays a zombie until the next request, so that its number is not reused while signals are sent to it.
    """
    for name in MODULES:
        importlib.import_module(name)
    # Shells start background jobs with SIGINT ignored, nohup with SIGHUP.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.path[0] = ""  # as under `python -c`
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the shared memory
    answers, child = os.dup(1), 0
    for line in sys.stdin:
        if child:
            os.waitpid(child, 0)
        child = os.fork()
        if not child:
            os.close(answers)
            become(**json.loads(line))
        os.write(answers, b"%d\n" % child)
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        os.write(answers, b"%d\n" % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
    leave(0)


def become(code: str, arguments: list[str], cwd: str, env: dict[str, str], outputs: list[str]) -> None:
    """Act as the process `python -c code arguments`; does not return."""
    for number, path in enumerate([os.devnull, *outputs]):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY), number)
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
    """Exit without finalizing the interpreter, which takes longer than most scripts."""
    atexit._run_exitfuncs()  # coverage writes its counts here
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()
