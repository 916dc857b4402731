"""``sinuflow``: the commands, and one line for everything that goes wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable


def run() -> None:
    """The entry point of the command line."""
    try:
        from .app import app
    except ImportError as error:
        if error.name and error.name.split(".")[0] in ("typer", "rich"):
            sys.exit("the command line needs more than the library: pip install 'sinuflow[cli]'")
        raise
    if "--debug" in sys.argv:
        sys.argv.remove("--debug")
        app()
    warnings.simplefilter("ignore")
    sys.exit(_in_one_line(app))


def _in_one_line(app: Callable[[], object]) -> int:
    """Run the command; whatever goes wrong is one line, and the exit code says so."""
    from ..errors import SinuflowError

    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
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
    print(f"error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return 1
