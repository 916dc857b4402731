"""A fake C++ compiler that copies an existing library, so that tests of the cache are fast."""

from __future__ import annotations

from pathlib import Path


def fake_compiler(folder: Path, library: Path) -> Path:
    """An executable; it writes its arguments to ``calls`` beside it, line by line."""
    return script(
        folder / "fake-c++",
        f"""
        echo "$@" >> '{folder}/calls'
        for argument; do
            [ "$previous" = -o ] && cp '{library}' "$argument"
            previous=$argument
        done
        echo fake 1.0
        """,
    )


def script(path: Path, commands: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{commands}\n", encoding="latin-1")
    path.chmod(0o700)
    return path


def builds(folder: Path) -> list[str]:
    """The commands by which the fake compiler was asked for a library."""
    return [line for line in (folder / "calls").read_text().splitlines() if " -o " in line]
