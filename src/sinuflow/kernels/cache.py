"""Where compiled kernels are kept between processes."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """A folder of the user's cache; ``SINUFLOW_CACHE`` in the environment says another. May raise OSError."""
    named = os.environ.get("SINUFLOW_CACHE")
    if named:
        return Path(named).resolve()
    try:
        home = Path.home()
    except RuntimeError as error:  # a user without a home, as in some containers
        raise OSError(str(error)) from error
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "sinuflow"


def keep(path: Path, content: bytes) -> None:
    """Write a file in one step, so that other processes never see half of it; may raise OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    demand_private(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def demand_private(path: Path) -> None:
    """Refuse what others could have written, with OSError: it is going to be run."""
    if not hasattr(os, "getuid"):
        return
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} could have been written by other users")
