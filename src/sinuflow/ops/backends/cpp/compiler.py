"""Calls of the C++ compiler, with time limits."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from .. import cache

OPTIONS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
#: Processor-specific options; the first that the compiler accepts is used.
TUNINGS = [
    ["-march=native", "-mprefer-vector-width=512", "-fopenmp-simd"],
    ["-march=native", "-fopenmp-simd"],
    ["-mcpu=native", "-fopenmp-simd"],
    [],
]
#: Time limits for compiling and for ``--version``, in seconds.
COMPILE_SECONDS, VERSION_SECONDS = 120.0, 20.0
#: Fields of /proc/cpuinfo with a processor's features, on x86, ARM, RISC-V, POWER, s390, MIPS and LoongArch.
_FEATURES = (
    {"model name", "flags", "features", "isa", "hart isa", "uarch", "cpu", "cpu model", "cpu implementer"}
    | {"cpu part", "cpu variant", "machine", "ases implemented"}
)  # fmt: skip


class CppError(RuntimeError):
    """There is no compiler, or it fails, or its output cannot be loaded."""


class NoCompilerError(CppError):
    """There is no compiler."""


def find_compiler() -> str:
    """The path of a C++ compiler: ``CXX`` from the environment, or the first of the usual names."""
    found = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), "c++", "g++", "clang++"])), None)
    # On a Mac without developer tools, calling the compiler would open a window.
    if found is None or (platform.system() == "Darwin" and run(["xcode-select", "-p"], VERSION_SECONDS)[0]):
        raise NoCompilerError("no C++ compiler was found")
    return os.path.abspath(found)


def processor() -> str | None:
    """A description of the processor's features, or None if they are unknown.

    It is part of the cache's key, because machines with different processors may share a home folder. Where it is
    unknown, code must not be tuned.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor() or None
    return features(text)


def features(cpuinfo: str) -> str | None:
    """The distinct lines of /proc/cpuinfo that describe the processor's features, or None."""
    lines = {line for line in cpuinfo.splitlines() if line.split(":")[0].strip().lower() in _FEATURES}
    return "\n".join(sorted(lines)) or None


def compile_library(compiler: str, source: Path, tunings: list[list[str]]) -> bytes:
    """A shared library, by the first tuning that the compiler accepts. May raise OSError."""
    reason = ""
    with cache.temporary_folder() as folder:
        library = folder / "compiled.so"
        for tuning in tunings:
            command = [compiler, *OPTIONS, *tuning, "-o", str(library), str(source)]
            code, output = run(command, COMPILE_SECONDS, folder)
            if code == 0 and library.exists():
                return library.read_bytes()
            lines = output.strip().splitlines()
            reason = "".join(filter(str.isprintable, lines[-1])) if lines else f"exit code {code}, and no library"
    raise CppError(f"{compiler} cannot compile the kernels: {reason[:120]}")


def run(command: list[str], seconds: float, folder: Path | None = None) -> tuple[int, str]:
    """The exit code and the output of a command without input, with a time limit.

    The output goes to a file, because reading a pipe blocks until all children of the command have closed it.
    """
    environment = os.environ | {"LC_ALL": "C"} | ({} if folder is None else {"TMPDIR": str(folder)})
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise CppError(f"{command[0]} did not finish within {seconds:g} seconds") from error
        finally:
            if process.returncode is None:
                if hasattr(os, "killpg"):  # with its children: a compiler driver starts others
                    with suppress(ProcessLookupError, PermissionError):  # it has already ended
                        os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")
