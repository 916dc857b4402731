"""The cache of compiled kernels: ownership, permissions and integrity."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from sinuflow.errors import KernelWarning
from sinuflow.ops.backends import cache
from sinuflow.ops.backends.cache import open_private_folder
from sinuflow.ops.backends.cuda import compiler as cuda_compiler
from tests.processes import unmeasured

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners of files")

NAME, CONTENT = "kernels.so", bytes(range(256)) * 20
#: Attempts at an attack that depends on timing.
TRIES = int(os.environ.get("SINUFLOW_CASES", 200))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    chosen = tmp_path / "above" / "cache"
    monkeypatch.setenv("SINUFLOW_CACHE", str(chosen))
    return chosen


def opens(path: Path) -> bool:
    try:
        os.close(open_private_folder(path))
    except PermissionError as error:
        return "SINUFLOW_CACHE" not in str(error)  # refused, with the remedy
    return True


# ---------------------------------------------------------------- content


def test_what_is_written_is_read(folder):
    assert cache.read(NAME) is None
    cache.write(NAME, CONTENT)
    cache.write(NAME, CONTENT + b"more")
    assert cache.read(NAME) == CONTENT + b"more"
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_cut_or_altered_is_not_read(folder):
    cache.write(NAME, CONTENT)
    whole = (folder / NAME).read_bytes()
    for length in (*range(0, len(whole), 97), len(whole) - 32, len(whole) - 1):
        (folder / NAME).write_bytes(whole[:length])
        assert cache.read(NAME) is None
    for place in range(0, len(whole), 97):
        altered = bytearray(whole)
        altered[place] ^= 1
        (folder / NAME).write_bytes(altered)
        assert cache.read(NAME) is None
    (folder / NAME).write_bytes(whole)
    assert cache.read(NAME) == CONTENT


def test_a_renamed_file_is_not_read(folder):
    cache.write(NAME, CONTENT)
    (folder / NAME).rename(folder / "other.so")
    assert cache.read("other.so") is None


def test_links_fifos_folders_and_shared_files_are_not_read_but_replaced(folder, tmp_path):
    cache.write(NAME, CONTENT)
    path, elsewhere = folder / NAME, tmp_path / "elsewhere"
    whole = path.read_bytes()

    def link() -> None:
        elsewhere.write_bytes(whole)
        path.symlink_to(elsewhere)

    def shared() -> None:
        path.write_bytes(whole)
        path.chmod(0o660)

    for plant in (link, shared, lambda: os.mkfifo(path)):
        path.unlink()
        plant()
        assert cache.read(NAME) is None
        cache.write(NAME, CONTENT)
        assert cache.read(NAME) == CONTENT
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.mkdir()
    assert cache.read(NAME) is None


def test_a_file_is_on_the_disk_before_it_has_its_name(folder, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append("fsync") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *a, **k: events.append("rename") or replace(*a, **k))
    cache.write(NAME, CONTENT)
    assert events == ["fsync", "rename", "fsync"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(folder, monkeypatch):
    cache.write(NAME, CONTENT)
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        cache.write(NAME, b"new")
    assert cache.read(NAME) == CONTENT
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_leftovers_of_killed_processes_are_removed(folder):
    cache.write(NAME, CONTENT)
    for name, time in ((".tmp-old", 0), (".tmp-new", None)):
        (folder / name).mkdir()
        (folder / name / "file").touch()
        os.utime(folder / name, None if time is None else (time, time))
    cache.write(NAME, CONTENT)
    assert {path.name for path in folder.iterdir()} == {NAME, ".tmp-new"}


# ---------------------------------------------------------------- place


def test_the_folder_that_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINUFLOW_CACHE", "relative")
    assert cache.cache_folder() == tmp_path / "relative"
    monkeypatch.setenv("SINUFLOW_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == tmp_path / ".cache" / "sinuflow"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "sinuflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(OSError, match="SINUFLOW_CACHE"):
        cache.cache_folder()


def test_a_user_without_a_home(monkeypatch):
    monkeypatch.delenv("SINUFLOW_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(OSError, match="SINUFLOW_CACHE"):
        cache.cache_folder()


# ---------------------------------------------------------------- owners and permissions


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_folder_that_others_can_write_to_is_refused_at_any_height(tmp_path, mode, which):
    folders = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert opens(folders[-1])
    folders[which].chmod(mode)
    assert not opens(folders[-1])


def test_a_sticky_folder_may_be_above_but_not_the_cache_itself(tmp_path):
    above = tmp_path / "above"
    assert opens(above / "cache")
    above.chmod(0o1777)
    assert opens(above / "cache")
    assert not opens(above)


def test_folders_of_other_users_are_refused(tmp_path, monkeypatch):
    assert opens(tmp_path / "cache")
    someone = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone)
    assert not opens(tmp_path / "cache")


def test_links_on_the_way_are_resolved_once_and_their_targets_checked(tmp_path, monkeypatch):
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir(mode=0o700)
    link.symlink_to(target)
    monkeypatch.setenv("SINUFLOW_CACHE", str(link / "cache"))
    cache.write(NAME, CONTENT)
    assert cache.read(NAME) == CONTENT
    with cache.temporary_folder() as folder:  # whoever turns the link elsewhere does not move this
        assert target in folder.parents
    target.chmod(0o777)
    with pytest.raises(PermissionError, match="target can be written by other users"):
        cache.read(NAME)


def test_a_link_that_appears_after_names_were_resolved_is_not_followed(tmp_path):
    assert opens(tmp_path / "target")
    (tmp_path / "cache").symlink_to(tmp_path / "target")
    for path in (tmp_path / "cache", tmp_path / "cache" / "below"):
        with pytest.raises(NotADirectoryError):
            open_private_folder(path)


def test_descriptors_are_closed(tmp_path):
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not list descriptors")
    (tmp_path / "file").touch()
    before = len(os.listdir("/proc/self/fd"))
    assert opens(tmp_path / "cache")
    with pytest.raises(NotADirectoryError):
        open_private_folder(tmp_path / "file" / "cache")
    tmp_path.chmod(0o777)
    assert not opens(tmp_path / "cache")
    assert len(os.listdir("/proc/self/fd")) == before


def test_machine_code_for_gpus_is_verified_in_the_same_way(folder, monkeypatch):
    made = []
    monkeypatch.setattr(cuda_compiler, "find_compiler", Mock())
    monkeypatch.setattr(cuda_compiler, "_version", lambda library: "13.0")
    monkeypatch.setattr(cuda_compiler, "_compile", lambda library, source, options: made.append(source) or CONTENT)

    def compiled() -> int:
        assert cuda_compiler.compiled("source", {}, "sm_90") == CONTENT
        return len(made)

    assert [compiled(), compiled()] == [1, 1]
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    assert [compiled(), compiled()] == [2, 2]
    folder.parent.chmod(0o777)
    with pytest.warns(KernelWarning, match="compiled again in every process"):
        assert [compiled(), compiled()] == [3, 4]


# ---------------------------------------------------------------- another user

#: Swaps the victim's folder and its own as fast as possible.
ATTACK = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
world, name, content = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
os.chdir(world)
os.mkdir("evil", 0o755)
with open("evil/" + name, "wb") as file:
    file.write(content)
print("ready", flush=True)
while True:
    for source, target in (("cache", "aside"), ("evil", "cache"), ("cache", "evil"), ("aside", "cache")):
        try:
            os.rename(source, target)
        except OSError:
            pass
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_another_user_cannot_plant_a_file(mode, monkeypatch):
    planted = b"planted" + cache._digest(NAME, b"planted")  # the digest is no secret
    world = Path(tempfile.mkdtemp(dir="/tmp"))
    attacker = None
    try:
        monkeypatch.setenv("SINUFLOW_CACHE", str(world / "cache"))
        cache.write(NAME, CONTENT)
        world.chmod(mode)
        command = [sys.executable, "-I", "-S", "-c", ATTACK, str(world), NAME, planted.hex()]
        attacker = subprocess.Popen(command, stdout=subprocess.PIPE, env=unmeasured())
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"ready\n"
        found = []
        for _ in range(TRIES):
            try:
                found.append(cache.read(NAME))
            except OSError:
                found.append("refused")
        assert attacker.poll() is None
        # Where the other user can exchange folders, all is refused; where /tmp's rules hold, nothing was exchanged.
        assert set(found) == ({CONTENT} if mode & 0o1000 else {"refused"})
    finally:
        if attacker is not None:
            attacker.kill()
            attacker.wait()
            attacker.stdout.close()
        shutil.rmtree(world)
