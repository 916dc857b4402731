"""Opening a folder that no other user can change or replace."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def open_private_folder(path: Path) -> int:
    """A descriptor of a folder that only this user and root can have written to. Raises OSError.

    Every folder from the root down is opened relative to its parent, without following links, and checked through its
    descriptor, so that no folder can be replaced after its check. Each must belong to this user or root, and must not
    be writable by group or others, except for sticky parents such as /tmp. Missing folders are created. ``path`` must
    be absolute and without links (``os.path.realpath``).
    """
    descriptor: int | None = None
    for here in (*reversed(path.parents), path):
        above = descriptor
        try:
            descriptor = _open(here, above, last=here == path)
        finally:
            if above is not None:
                os.close(above)
    assert descriptor is not None
    return descriptor


def _open(path: Path, above: int | None, *, last: bool) -> int:
    """One folder, relative to the descriptor of its parent."""
    # O_PATH, where it exists, does not require that parents are readable.
    access = os.O_RDONLY if last else getattr(os, "O_PATH", os.O_RDONLY)
    flags = access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    name = path if above is None else path.name
    try:
        try:
            descriptor = os.open(name, flags, dir_fd=above)
        except FileNotFoundError:
            with suppress(FileExistsError):  # created by another process; checked like any other
                os.mkdir(name, mode=0o700, dir_fd=above)
            descriptor = os.open(name, flags, dir_fd=above)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    try:
        _check(path, os.fstat(descriptor), last=last)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: Path, status: os.stat_result, *, last: bool) -> None:
    owners = {os.geteuid()} if last else {0, os.geteuid()}
    if status.st_uid not in owners:
        raise PermissionError(f"{path} belongs to another user: set SINUFLOW_CACHE to a folder of your own")
    sticky = bool(status.st_mode & stat.S_ISVTX) and not last
    if status.st_mode & WRITABLE_BY_OTHERS and not sticky:
        raise PermissionError(
            f"{path} can be written by other users: remove that permission (chmod go-w), or set SINUFLOW_CACHE to a "
            "folder of your own"
        )
