"""``sinuflow``: the commands, one line for everything that goes wrong, and an exit code for every signal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from ..printable import printable
from ..signals import Stopped, command_handler


def run() -> None:
    """The entry point of the command line."""
    command_handler.install()
    try:
        code = _run()
        command_handler.remove()
    except SystemExit:
        command_handler.remove()
        raise
    except Stopped as stop:
        code = _stopped(stop)
        command_handler.remove()
    sys.exit(code)


def _run() -> int:
    try:
        from .app import app
    except ImportError as error:
        if error.name and error.name.split(".")[0] in ("typer", "rich"):
            sys.exit("the command line needs more than the library: pip install 'sinuflow[cli]'")
        raise
    command_handler.imported()
    if "--debug" in sys.argv:
        sys.argv.remove("--debug")
        app()
    warnings.simplefilter("ignore")
    code = _in_one_line(app)
    # Libraries may turn the exception of a signal into one of their own.
    return code if code != 1 or command_handler.received is None else 128 + command_handler.received


def _stopped(stop: Stopped) -> int:
    with suppress(OSError):  # the terminal may be gone
        print("interrupted", file=sys.stderr)  # noqa: T201
    return 128 + stop.number


def _in_one_line(app: Callable[[], object]) -> int:
    """Run the command; whatever goes wrong is one line, and the exit code says so."""
    from ..errors import SinuflowError

    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Stopped as stop:
        return _stopped(stop)
    except SinuflowError as error:
        message = str(error)
    except MemoryError:
        message = "not enough memory for this"
    except OSError as error:
        message = (f"{error.filename}: " if error.filename else "") + str(error.strerror or error)
    except Exception as error:
        message = f"{type(error).__name__}: {str(error)[:300]} (run again with --debug for details)"
    else:
        return 0
    with suppress(OSError):
        print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)  # noqa: T201
    return 1
