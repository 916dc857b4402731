"""Atomic writes, and lock files that name their holder."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import StorageError
from .signals import shielded

#: Attempts to lock a file, which another process may remove after it was opened.
_MAX_TRIES = 100
#: The content of a lock file, and a bound on its size; a file with other content is not a lock file of Sinuflow.
_HOLDER = re.compile(r"process \d+ on .* since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_MAX_HOLDER = 1000
#: Errors of file systems without locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def _failing_to(action: str) -> Iterator[None]:
    """Report errors of the file system as "cannot <action>"."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action}: {error.strerror or error}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[str]:
    """Yield the name of a temporary file, which replaces ``path`` if the block succeeds and is removed if not.

    Only regular files are replaced, and symbolic links to them (the link, never its target). Temporary files of killed
    processes for the same path are removed first.
    """
    handle, temporary = None, ""
    with _failing_to(f"write {path}"):
        try:
            require_regular(path)
            with shielded():
                _remove_stale(path)
                handle, temporary = _create(path)
            yield temporary
            with shielded():
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())  # on disk before it replaces the old file
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(temporary, 0o666 & ~mask)
                require_regular(path)
                os.replace(temporary, path)
                temporary = ""
        finally:
            with shielded():
                if temporary:
                    with suppress(OSError):
                        os.unlink(temporary)
                if handle is not None:
                    os.close(handle)


def append(path: Path, data: bytes) -> None:
    """Append to a file completely or not at all."""
    with _failing_to(f"write {path}"), open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def require_regular(path: Path) -> None:
    """Refuse to replace a device, FIFO, socket or folder, or a symbolic link to one."""
    with _failing_to(f"write {path}"), suppress(FileNotFoundError):  # no file, or a dangling link
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise StorageError(f"cannot write {path}: it is {kind}")


def require_writable(path: Path) -> None:
    """Refuse a path that :func:`replacing` cannot replace, for one because its temporary file has too long a name."""
    with _failing_to(f"write {path}"), shielded():
        handle, temporary = _create(path)
        os.unlink(temporary)
        if handle is not None:
            os.close(handle)


@contextmanager
def locked(path: Path, what: object) -> Iterator[None]:
    """Hold the lock file ``path`` during the block; raise a StorageError that names the process that holds it.

    The kernel releases the lock when the process ends, so the lock file of a killed process is ignored. On a file
    system without locks, the block runs without one.
    """
    with shielded():
        handle = _lock(path, what)
    try:
        yield
    finally:
        with shielded():
            if handle is not None:
                if _is_at(handle, path):
                    with suppress(OSError):
                        os.unlink(path)
                os.close(handle)


def lock_beside(path: Path) -> Path:
    """The lock file of an output."""
    return path.with_name(f".{path.name}.lock")


def _lock(path: Path, what: object) -> int | None:
    for _ in range(_MAX_TRIES):
        with _failing_to(f"lock {what}: {path}"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        success = False
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise StorageError(f"cannot lock {what}: {path} is not a regular file")
            acquired = _try_lock(handle)
            text = os.read(handle, _MAX_HOLDER).decode(errors="replace")
            valid = not text or bool(_HOLDER.fullmatch(text))
            if acquired is False:
                holder = text if text and valid else "another process"
                raise StorageError(f"{what} is in use by {holder}: wait until it ends, or choose another name")
            if not valid or os.fstat(handle).st_nlink > 1:
                raise StorageError(f"cannot lock {what}: {path} is not a lock file of Sinuflow: move it away")
            if acquired is None:
                with suppress(OSError):
                    os.unlink(path)
                return None
            if _is_at(handle, path):  # not removed by its last holder
                success = True
                with suppress(OSError):  # on a full disk the lock holds without a name
                    os.ftruncate(handle, 0)
                    since = time.strftime("%Y-%m-%d %H:%M:%S")
                    content = f"process {os.getpid()} on {socket.gethostname()} since {since}".encode()
                    if os.pwrite(handle, content, 0) < len(content):
                        os.ftruncate(handle, 0)
                return handle
        finally:
            if not success:
                os.close(handle)
    raise StorageError(f"cannot lock {what}: {path} keeps being removed by other processes")


def _try_lock(handle: int) -> bool | None:
    """Whether the lock was free; None if the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if isinstance(error, BlockingIOError) or error.errno == errno.EACCES:
            return False
        raise
    return True


def _is_at(handle: int, path: Path | str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False


def _create(path: Path) -> tuple[int | None, str]:
    """A new temporary file for ``path``, and a handle that locks it, so that no process removes it as stale."""
    for _ in range(_MAX_TRIES):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        acquired = _try_lock(handle)
        if acquired and _is_at(handle, name):
            return handle, name
        os.close(handle)
        if acquired is None:
            return None, name
        with suppress(OSError):
            os.unlink(name)
    raise StorageError(f"cannot write {path}: temporary files beside it are removed by other processes")


def _remove_stale(path: Path) -> None:
    """Remove temporary files that no process has locked: their process was killed."""
    name = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.part")
    for entry in [entry for entry in os.scandir(path.parent) if name.fullmatch(entry.name)]:
        with suppress(OSError):
            handle = os.open(entry.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                if _try_lock(handle) and _is_at(handle, entry.path):
                    os.unlink(entry.path)
            finally:
                os.close(handle)
