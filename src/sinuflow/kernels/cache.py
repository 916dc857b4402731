"""Where compiled kernels are kept between processes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """A folder of the user's cache; ``SINUFLOW_CACHE`` in the environment says another."""
    named = os.environ.get("SINUFLOW_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinuflow"


def keep(path: Path, content: bytes) -> None:
    """Write a file in one step, so that other processes never see half of it; may raise OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
