"""Check what a change to a few files needs, in seconds: ``python scripts/check.py src/sinuflow/files.py``.

Runs ruff, the format check, mypy, import-linter, the files' doctests and the tests that mirror them. Without arguments,
it checks the files that differ from the last commit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
#: Test files that are run at most for a module without a mirrored test.
MOST_TESTS = 6


def mirrored_tests(path: PurePath, root: Path = ROOT) -> list[PurePath]:
    """The test files of a file: its mirror under ``tests``, or else the tests that import it.

    Both paths are relative to ``root``. A test of ``src/sinuflow/a/b.py`` is ``test_b.py`` or ``test_b_*.py`` in
    ``tests/a`` or a folder above it.
    """
    if path.suffix == ".md":
        return [PurePath("tests/test_docs.py")]
    if path.parts[0] == "tests" and path.name.startswith("test_"):
        return [path]
    if path.parts[:2] == ("src", "sinuflow"):
        folder = root / "tests" / PurePath(*path.parts[2:-1])
        while folder != root:
            tests = {folder / f"test_{path.stem}.py"} | {
                test
                for test in folder.glob(f"test_{path.stem}_*.py")
                if not (root / path).with_name(test.name.removeprefix("test_")).exists()
            }
            if present := sorted(test.relative_to(root) for test in tests if test.is_file()):
                return list(present)
            folder = folder.parent
    return _importing_tests(path, root)[:MOST_TESTS] if path.suffix == ".py" else []


def _importing_tests(path: PurePath, root: Path) -> list[PurePath]:
    """The tests that import a module, fewest imports of other modules first."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] in ("src", "benchmarks", "scripts") else parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    package, name = re.escape(".".join(parts[:-1])), re.escape(parts[-1])
    dotted = rf"{package}\.{name}" if package else name
    inside = rf"|^\s*from {package} import [^\n]*\b{name}\b" if package else ""
    pattern = re.compile(rf"^\s*(?:from|import) {dotted}\b{inside}", re.MULTILINE)
    texts = {test: test.read_text(encoding="utf-8") for test in (root / "tests").rglob("test_*.py")}
    found = [test for test, text in texts.items() if pattern.search(text)]
    found.sort(key=lambda test: (texts[test].count("import"), test))
    return [test.relative_to(root) for test in found]


def steps(paths: list[PurePath], root: Path = ROOT) -> dict[str, list[str]]:
    """The commands by name."""
    python = [str(path) for path in paths if path.suffix == ".py" and (root / path).is_file()]
    commands: dict[str, list[str]] = {}
    if python:
        commands["style"] = ["-m", "ruff", "check", *python]
        commands["format"] = ["-m", "ruff", "format", "--check", *python]
    if any(path.parts[0] == "src" for path in paths):
        commands["types"] = ["-m", "mypy"]
        commands["imports"] = ["-c", "from importlinter.cli import lint_imports_command as run; run()"]
    doctests = [path for path in python if path.startswith("src") and ">>>" in (root / path).read_text("utf-8")]
    tests = dict.fromkeys([*doctests, *(str(test) for path in paths for test in mirrored_tests(path, root))])
    if tests:
        commands["tests"] = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return commands


def run(command: list[str]) -> tuple[int, str]:
    """The exit code and the output of a Python command in the root folder, with its own sources imported."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip()


def changed_files() -> list[str]:
    """Files that differ from the last commit, and files that are not tracked yet."""
    names = ["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"]
    return [line for name in names for line in subprocess.check_output(name, cwd=ROOT, text=True).splitlines()]


def main(arguments: Iterable[str]) -> int:
    """Run all checks of the files; returns the exit code."""
    start = time.monotonic()
    names = list(arguments) or [str(ROOT / name) for name in changed_files()]
    paths = [Path(name).resolve() for name in names]
    outside = [name for name, path in zip(names, paths, strict=True) if not path.is_relative_to(ROOT)]
    if outside:
        print(f"check: {outside[0]} is not in {ROOT}")
        return 2
    commands = steps([path.relative_to(ROOT) for path in paths])
    if not commands:
        print("check: nothing to check")
        return 0
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(commands, pool.map(run, commands.values()), strict=True))
    failed = [name for name, (code, _) in results.items() if code]
    for name in failed:
        print(f"--- {name}\n{results[name][1]}")
    if "tests" in results and "tests" not in failed:
        print(results["tests"][1].splitlines()[-1])
    print(f"check: {'FAILED: ' + ', '.join(failed) if failed else 'passed: ' + ', '.join(commands)}", end=" ")
    print(f"({time.monotonic() - start:.1f} s)")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
