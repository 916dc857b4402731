"""The entry point ``sinuflow``: errors are one line, signals have exit codes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from ..printable import printable
from .signals import Stopped, command_handler


def run() -> None:
    """The entry point of the command line."""
    command_handler.install()
    try:
        code: str | int | None = _run()
        command_handler.remove()
    except (Stopped, SystemExit) as stop:
        code = _stopped(stop) if isinstance(stop, Stopped) else stop.code
        command_handler.remove()
    sys.exit(code)


def _run() -> int:
    try:
        from .app import app
    except ImportError as error:
        if error.name and error.name.split(".")[0] in ("typer", "rich"):
            sys.exit("the command line needs more than the library: pip install 'sinuflow[cli]'")
        raise
    command_handler.importing = False
    if "--debug" in sys.argv:
        sys.argv.remove("--debug")
        app()
    code = _in_one_line(app)
    # A library may have replaced Stopped with an exception of its own.
    return code if code != 1 or command_handler.received is None else 128 + command_handler.received


def _in_one_line(app: Callable[[], object]) -> int:
    """Run the command and return its exit code; errors and Sinuflow's kernel warnings are printed as one line."""
    from ..errors import ColumnsError, KernelWarning, SinuflowError

    warnings.simplefilter("ignore")
    warnings.simplefilter("default", KernelWarning)
    warnings.showwarning = lambda message, *_, **__: _print(f"warning: {message}")
    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Stopped as stop:
        return _stopped(stop)
    except ColumnsError as error:
        for line in f"error: {error}".splitlines():
            _write(line)
        return 1
    except SinuflowError as error:
        message = str(error)
    except MemoryError:
        message = "not enough memory"
    except OSError as error:
        message = (f"{error.filename}: " if error.filename else "") + str(error.strerror or error)
    except Exception as error:
        message = f"{type(error).__name__}: {str(error)[:300]} (run again with --debug for details)"
    else:
        return 0
    _print(f"error: {message}")
    return 1


def _stopped(stop: Stopped) -> int:
    _print("interrupted")
    return 128 + stop.number


def _print(message: str) -> None:
    _write(" ".join(message.split()))


def _write(line: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        print(printable(line), file=sys.stderr)  # noqa: T201
