"""The cache of compiled kernels on disk, in a folder that no other user can change or replace."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...errors import KernelWarning

#: Length of the SHA-256 digest at the end of every file.
_DIGEST = 32
#: Prefix of temporary folders, and the age in seconds at which they are removed.
_TEMPORARY, _STALE = ".tmp-", 24 * 3600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

Loaded = TypeVar("Loaded")


class _Folder(NamedTuple):
    """The cache folder, with a verified descriptor on POSIX systems."""

    path: Path
    descriptor: int | None

    def entry(self, name: str) -> str:
        """The path of a file in it, for calls with ``dir_fd=self.descriptor``."""
        return str(self.path / name) if self.descriptor is None else name


def cache_folder() -> Path:
    """``SINUFLOW_CACHE`` from the environment, or a folder in the user's cache. May raise OSError.

    A relative ``SINUFLOW_CACHE`` counts from the working directory; a relative ``XDG_CACHE_HOME`` is ignored, as the
    XDG specification demands.
    """
    if chosen := os.environ.get("SINUFLOW_CACHE"):
        return Path(chosen).absolute()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user_cache.is_absolute():
        user_cache = Path(os.path.expanduser("~/.cache"))  # unchanged for a user without a home, as in some containers
    if not user_cache.is_absolute():
        raise FileNotFoundError("there is no absolute home folder: set SINUFLOW_CACHE to a folder of your own")
    return user_cache / "sinuflow"


def read(name: str) -> bytes | None:
    """The verified content of a file; None if it is missing, damaged, or another user's.

    Raises OSError if other users can write to the cache. Use these bytes, and do not open the file again.
    """
    flags = os.O_RDONLY
    for flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, flag, 0)
    with _folder() as folder:
        try:
            descriptor = os.open(folder.entry(name), flags, dir_fd=folder.descriptor)
            with os.fdopen(descriptor, "rb") as file:
                stored = file.read() if _is_private(os.fstat(descriptor)) else b""
        except OSError:
            return None
    content, digest = stored[:-_DIGEST], stored[-_DIGEST:]
    return content if digest == _digest(name, content) else None


def write(name: str, content: bytes) -> None:
    """Store bytes under a name, durably and atomically. May raise OSError."""
    with _folder() as folder, _in_cache() as temporary:
        path = temporary / name
        with open(path, "xb") as file:
            file.write(content + _digest(name, content))
            file.flush()
            os.fsync(file.fileno())
        path.chmod(0o600)
        os.replace(path, folder.entry(name), dst_dir_fd=folder.descriptor)
        if folder.descriptor is not None:
            os.fsync(folder.descriptor)


def kernels(name: str, compiled: Callable[[], bytes], load: Callable[[bytes], Loaded]) -> Loaded:
    """Kernels from the cache, or else compiled and stored for other processes; a warning if that fails."""
    with suppress(OSError):  # the cache is not private, or what it holds cannot be loaded: compile
        stored = read(name)
        if stored is not None:
            return load(stored)
    content = compiled()
    loaded = load(content)
    try:
        write(name, content)
    except OSError as error:
        problem = f"kernels are compiled again in every process, because they cannot be stored: {one_line(error)}"
        remedy = "" if "SINUFLOW_CACHE" in problem else ": set SINUFLOW_CACHE to another folder of your own"
        warnings.warn(problem + remedy, KernelWarning, stacklevel=2)
    return loaded


def one_line(error: OSError) -> str:
    """The error's message and file."""
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror}{where}" if error.strerror else str(error)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for temporary files that no other user can write to. May raise OSError.

    It is in the cache, or in the system's temporary folder if the cache is not private or not writable.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(_in_cache())
        except OSError:
            name = tempfile.TemporaryDirectory(prefix="sinuflow-", ignore_cleanup_errors=True)
            folder = Path(os.path.realpath(stack.enter_context(name)))
            if hasattr(os, "geteuid"):
                os.close(open_private_folder(folder))
        yield folder


@contextmanager
def _in_cache() -> Iterator[Path]:
    with _folder() as folder:
        _remove_leftovers(folder.path)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder.path, ignore_cleanup_errors=True) as name:
            yield Path(name)


@contextmanager
def _folder() -> Iterator[_Folder]:
    path = cache_folder()
    if not hasattr(os, "geteuid"):
        path.mkdir(parents=True, exist_ok=True)
        yield _Folder(path, None)
        return
    path = Path(os.path.realpath(path))  # links are resolved once, before the check
    descriptor = open_private_folder(path)
    try:
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _is_private(status: os.stat_result) -> bool:
    """Whether this is a regular file that only this user can have written."""
    own = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS)
    return stat.S_ISREG(status.st_mode) and own


def _digest(name: str, content: bytes) -> bytes:
    """A hash of the content and of the name, so that a renamed file does not verify."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    with suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY}*"):
            if time.time() - path.lstat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)


# ---------------------------------------------------------------- private folders


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
    if status.st_mode & _WRITABLE_BY_OTHERS and not sticky:
        raise PermissionError(
            f"{path} can be written by other users: remove that permission (chmod go-w), or set SINUFLOW_CACHE to a "
            "folder of your own"
        )
