"""``sinuflow``: the commands, and one line for everything that goes wrong."""

from __future__ import annotations

import sys
import warnings


def run() -> None:
    """The entry point of the command line."""
    try:
        from .app import app
    except ImportError as error:
        if error.name and error.name.split(".")[0] in ("typer", "rich"):
            sys.exit("the command line needs more than the library: pip install 'sinuflow[cli]'")
        raise
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    sys.exit(_guarded(app, debug))


def _guarded(app: object, debug: bool) -> int:
    from ..errors import SinuflowError

    warnings.simplefilter("default" if debug else "ignore")
    try:
        app(standalone_mode=True)  # type: ignore[operator]
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130
    except SinuflowError as error:
        if debug:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        return 1
    except MemoryError:
        if debug:
            raise
        print("error: not enough memory for this", file=sys.stderr)  # noqa: T201
        return 1
    except OSError as error:
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    except Exception as error:
        if debug:
            raise
        text = " ".join(str(error).split())[:300]
        print(f"error: {type(error).__name__}: {text} (run again with --debug for details)", file=sys.stderr)  # noqa: T201
        return 1
    return 0
