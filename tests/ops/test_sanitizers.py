"""The C++ kernels under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sinuflow.ops.backends.cpp import compiler, library
from tests.processes import unmeasured

DRIVER = Path(__file__).with_name("sanitized.cpp")
#: Converting a float to an integer that cannot hold it is undefined, but not among UBSan's standard checks.
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
CASES = os.environ.get("SINUFLOW_CASES", "100")


def compile_sanitized(tmp_path: Path, source: Path, *options: str) -> Path | None:
    """An executable, or None if the compiler has no sanitizers."""
    # Optimised a little, and for any processor: it has to run under the sanitizers, not fast.
    kept = [option for option in compiler.OPTIONS if option not in ("-O3", "-shared")]
    command = [compiler.find_compiler(), *kept, "-O1", "-g1", "-fopenmp-simd", *SANITIZERS, *options]
    program = tmp_path / "program"
    done = subprocess.run([*command, "-o", program, source], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return program
    assert source != DRIVER, done.stderr
    return None


@pytest.fixture
def sanitizers(tmp_path):
    try:
        compiler.find_compiler()
    except compiler.CppError as error:
        pytest.skip(str(error))
    trivial = tmp_path / "trivial.cpp"
    trivial.write_text("int main(int count, char**) { return count - 1; }")
    program = compile_sanitized(tmp_path, trivial)
    if program is None or subprocess.run([program], check=False).returncode:
        pytest.skip("this compiler has no sanitizers, or they do not run here")


@pytest.mark.usefixtures("sanitizers")
def test_all_kernels_over_odd_sizes_and_hostile_values(tmp_path):
    program = compile_sanitized(tmp_path, DRIVER, f'-DWAVES_SOURCE="{library.SOURCE}"')
    assert program is not None
    environment = unmeasured(UBSAN_OPTIONS="print_stacktrace=1")
    done = subprocess.run([program, CASES], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{CASES} cases\n", "")
