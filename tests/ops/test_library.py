"""Compiling, storing and loading the C++ kernels, also with compilers that misbehave."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sinuflow.errors import KernelWarning
from sinuflow.ops import select as paths
from sinuflow.ops.backends import cache
from sinuflow.ops.backends.cpp import compiler, library
from sinuflow.ops.backends.cpp.compiler import CppError
from sinuflow.ops.select import cpp_backend
from tests.ops.fake_compiler import builds, fake_compiler, script
from tests.processes import unmeasured

pytestmark = [
    pytest.mark.skipif(not cpp_backend().available, reason=cpp_backend().reason),
    pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the compilers here are shell scripts"),
]

#: A library with a marker and empty functions.
PLANTED = "int planted;" + "".join(f"void {name}(void) {{}}" for name in library.FUNCTIONS)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The kernels, compiled without optimisation."""
    folder = tmp_path_factory.mktemp("compiled")
    path = folder / "kernels.so"
    path.write_bytes(compiler.compile_library(compiler.find_compiler(), library.SOURCE, [["-O0"]], folder))
    return path


@pytest.fixture
def place(tmp_path, monkeypatch, compiled):
    """A cache folder and a fake compiler that counts its calls."""
    monkeypatch.setenv("SINUFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, compiled)))
    return SimpleNamespace(
        cache=tmp_path / "cache", builds=lambda: builds(tmp_path), file=lambda: one(tmp_path / "cache")
    )


def one(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def fresh():
    """Load the library as in a new process."""
    return library.library.__wrapped__()


def works(loaded) -> bool:
    """Whether the kernels work: without waves, the stack adds its shifts."""
    x, z, ladj, shift = torch.ones(1, 3), torch.zeros(1, 3), torch.zeros(3), torch.full((1, 1), 2.0)
    waves = (ctypes.c_void_p * 4)(*[t.data_ptr() for t in (x, x, x, shift)])
    x_, z_, ladj_ = (ctypes.c_void_p(t.data_ptr()) for t in (x, z, ladj))
    loaded.shared_float_forward(x_, waves, z_, ladj_, ctypes.byref(library.Sizes(1, 3, 1, 0, 0, 0, 3)))
    return z.tolist() == [[3.0, 3.0, 3.0]]


# ---------------------------------------------------------------- stored


def test_kernels_are_compiled_once(place):
    assert works(fresh())
    assert works(fresh())
    assert len(place.builds()) == 1
    assert place.file().suffix == ".so"


SHORTENED = """
import os, sys
from pathlib import Path
from tests.ops.test_library import fresh, works
(path,) = Path(os.environ["SINUFLOW_CACHE"]).iterdir()
whole = path.read_bytes()
for length in (*range(0, len(whole), 1 + len(whole) // int(sys.argv[1])), len(whole) - 32, len(whole) - 1):
    path.write_bytes(whole[:length])
    loaded = fresh()
    assert works(loaded), length
    assert path.read_bytes() == whole, length
    os.truncate(path, 0)  # what is loaded does not depend on the file any more
    assert works(loaded), length
print("all rebuilt")
"""


def test_a_truncated_library_is_rebuilt_and_never_mapped(place):
    """In a subprocess, which SIGBUS would kill."""
    fresh()
    command = [sys.executable, "-c", SHORTENED, os.environ.get("SINUFLOW_CASES", "10")]
    done = subprocess.run(command, env=unmeasured(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all rebuilt\n", "")


def test_a_library_that_is_planted_after_the_check_is_not_loaded(place, tmp_path, monkeypatch):
    fresh()
    source = tmp_path / "planted.c"
    source.write_text(PLANTED)
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", "-o", tmp_path / "planted.so", source], check=True)
    planted = (tmp_path / "planted.so").read_bytes()
    path, read = place.file(), cache.read

    def read_and_plant(name: str) -> bytes | None:
        content = read(name)
        path.write_bytes(planted)
        return content

    monkeypatch.setattr(cache, "read", read_and_plant)
    assert hasattr(library.load(planted), "planted")  # it would load
    assert not hasattr(fresh(), "planted")
    monkeypatch.undo()


def test_processes_that_compile_at_once(place):
    """Six that start together with an empty cache."""
    program = """
import os
from tests.ops.test_library import fresh, works
start, go = os.pipe()
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(start, 1)  # until all are there
        os._exit(0 if works(fresh()) else 1)
    children.append(child)
os.close(go)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=unmeasured(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert cache.read(place.file().name) is not None


def test_a_library_that_cannot_be_loaded_is_compiled_again(place):
    fresh()
    name = place.file().name
    cache.write(name, b"from a machine of another kind")
    assert works(fresh())
    assert len(place.builds()) == 2
    assert works(fresh())
    assert len(place.builds()) == 2


def warned(match: str) -> None:
    """Kernels were loaded, and one line says why every process compiles them."""
    with pytest.warns(KernelWarning, match=rf"compiled again in every process.*{match}.*SINUFLOW_CACHE") as caught:
        assert works(fresh())
    assert len(caught) == 1
    assert str(caught[0].message).isprintable()


@pytest.mark.parametrize("mode", [0o775, 0o777])
@pytest.mark.parametrize("memory", [True, False])
def test_where_others_can_write_to_the_cache_kernels_are_compiled_elsewhere(place, monkeypatch, mode, memory):
    fresh()
    if not memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    place.cache.chmod(mode)
    place.file().write_bytes(b"planted")
    warned(match="can be written by other users")
    warned(match="can be written by other users")
    assert len(place.builds()) == 3
    assert place.file().read_bytes() == b"planted"
    output = Path(place.builds()[1].split(" -o ")[1].split()[0])
    assert place.cache not in output.parents
    assert not output.parent.exists()


def test_where_others_can_write_to_all_folders_nothing_is_compiled(place, monkeypatch):
    temporary = place.cache.parent / "temporary"
    temporary.mkdir()
    temporary.chmod(0o777)
    place.cache.mkdir()
    place.cache.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(CppError, match="temporary can be written by other users"):
        fresh()
    assert not place.builds()
    assert not list(temporary.iterdir())


def test_there_is_one_warning_if_a_compiler_does_not_work(tmp_path, monkeypatch):
    monkeypatch.setenv("SINUFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(paths, "library", fresh)
    cpp_backend.cache_clear()
    try:
        with pytest.warns(KernelWarning, match="the reference implementation is used.*cannot compile") as caught:
            assert not cpp_backend().available
        assert not cpp_backend().available
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, value in (("SINUFLOW_KERNELS", "plain"), ("PATH", "/nowhere")):
                monkeypatch.setenv("CXX", "")
                monkeypatch.setenv(name, value)
                cpp_backend.cache_clear()
                assert not cpp_backend().available
                monkeypatch.delenv(name)
    finally:
        cpp_backend.cache_clear()


def failing(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_cache_that_cannot_be_written_is_still_read(place, monkeypatch):
    fresh()
    monkeypatch.setattr(cache, "_remove_leftovers", failing(30))  # the first that is done in a temporary folder
    assert works(fresh())
    place.file().unlink()
    warned(match="Read-only file system")


def test_a_full_disk_costs_only_time(place, monkeypatch):
    monkeypatch.setattr(cache, "write", failing(28))
    warned(match="No space left")
    assert not list(place.cache.iterdir())


def test_systems_without_memfd(place, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert works(fresh())
    assert works(fresh())
    assert len(place.builds()) == 1
    assert place.file().suffix == ".so"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")
def test_a_loaded_library_cannot_be_changed(place):
    path = fresh()._name
    for change in (lambda: os.truncate(path, 0), lambda: Path(path).write_bytes(b"")):
        with pytest.raises(PermissionError):
            change()


# ---------------------------------------------------------------- the compiler


def refused(compiler_script: str, tmp_path: Path, monkeypatch) -> str:
    monkeypatch.setenv("SINUFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(script(tmp_path / "compiler", compiler_script)))
    with pytest.raises(CppError) as caught:
        fresh()
    message = str(caught.value)
    assert message.isprintable()  # one line, and nothing that a terminal would act on
    return message


@pytest.mark.parametrize("hangs", ["version", "compile"])
def test_a_compiler_that_hangs_is_killed_with_its_children(tmp_path, monkeypatch, hangs):
    monkeypatch.setattr(compiler, "VERSION_SECONDS" if hangs == "version" else "COMPILE_SECONDS", 0.3)
    answers = "" if hangs == "version" else '[ "$1" = --version ] && exit 0\n'
    child = tmp_path / "child"
    message = refused(
        f"{answers}sleep 1000 & echo $! > '{child}.part'; mv '{child}.part' '{child}'; wait", tmp_path, monkeypatch
    )
    assert "did not finish within 0.3 seconds" in message
    # On a busy machine it may have been ended before it had a child.
    assert not child.exists() or ended(int(child.read_text()))


def ended(process: int) -> bool:
    """Wait for the end of a process that is not ours; whoever adopted it may never ask for its exit code."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
    return False


def test_a_compiler_that_speaks_latin_1(tmp_path, monkeypatch):
    message = refused(
        "printf 'erreur \\351\\033[31m\\n\\033]0;title\\007fin \\351\\n' >&2; exit 1", tmp_path, monkeypatch
    )
    assert "cannot compile the kernels: ]0;titlefin \N{REPLACEMENT CHARACTER}" in message


def test_a_compiler_whose_version_is_latin_1_is_used(place, compiled):
    path = Path(os.environ["CXX"])
    path.write_bytes(path.read_bytes().replace(b"fake 1.0", b"version \xe9"))
    assert works(fresh())


def test_a_compiler_that_waits_for_input_gets_none(tmp_path, monkeypatch):
    assert "exit code 3" in refused("cat > /dev/null; exit 3", tmp_path, monkeypatch)


def test_a_compiler_that_writes_nothing_or_nonsense(tmp_path, monkeypatch):
    assert "no library" in refused("exit 0", tmp_path, monkeypatch)
    nonsense = 'for a; do [ "$p" = -o ] && echo nonsense > "$a"; p=$a; done; exit 0'
    assert "cannot be compiled or loaded" in refused(nonsense, tmp_path, monkeypatch)


def test_a_library_without_the_kernels_is_refused(tmp_path, monkeypatch):
    other = 'for a; do [ "$p" = -o ] && echo \'int other;\' | c++ -x c -shared -fPIC -o "$a" -; p=$a; done; exit 0'
    assert "has no function shared_float_forward" in refused(other, tmp_path, monkeypatch)


# ---------------------------------------------------------------- the processor

X86 = "processor\t: {n}\nmodel name\t: AMD EPYC\ncpu MHz\t\t: {mhz}\nflags\t\t: fpu {feature}\n\n"
ARM = "processor\t: {n}\nBogoMIPS\t: {mhz}\nFeatures\t: fp asimd {feature}\nCPU part\t: 0xd0c\n\n"
RISCV = "processor\t: {n}\nhart\t\t: {n}\nisa\t\t: rv64imafdc{feature}\nmmu\t\t: sv39\nuarch\t\t: sifive,u74-mc\n\n"
POWER = "processor\t: {n}\ncpu\t\t: POWER{feature}, altivec supported\nclock\t\t: {mhz}MHz\nrevision\t: 2.3\n\n"
S390 = (
    "vendor_id       : IBM/S390\nbogomips per cpu: {mhz}\nfeatures\t: esan3 zarch {feature}\ncpu number      : {n}\n\n"
)


@pytest.mark.parametrize("text", [X86, ARM, RISCV, POWER, S390])
def test_processors_differ_by_their_features(text):
    def machine(feature: str, mhz: str) -> str | None:
        return compiler.features("".join(text.format(n=n, feature=feature, mhz=mhz) for n in range(2)))

    assert machine("x", "1000") == machine("x", "2000.5")
    assert machine("x", "1000") != machine("y", "1000")


def test_code_for_an_unknown_processor_is_not_tuned(place, monkeypatch):
    fresh()
    assert "=native" in place.builds()[0]
    assert compiler.features("processor\t: 0\nbogomips\t: 100\n") is None
    monkeypatch.setattr(compiler, "processor", lambda: None)
    fresh()
    assert "=native" not in place.builds()[1]
