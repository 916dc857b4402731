"""Running another Python in a test."""

from __future__ import annotations

import os


def unmeasured(**more: str) -> dict[str, str]:
    """The environment without coverage's own hook in it.

    For a process that is not this source (a wheel), or that is killed or kept from
    writing: there coverage would count the wrong files, or fail to save what it counted.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")} | more
