"""Which tests ``make check`` runs for a file."""

from __future__ import annotations

import sys
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from check import main, mirrored_tests, steps  # noqa: E402


@pytest.fixture
def project(tmp_path):
    """A project of empty modules and tests."""
    files = {
        "src/sinuflow/a/b.py": "", "src/sinuflow/a/b_c.py": "", "src/sinuflow/a/alone.py": "",
        "src/sinuflow/a/__init__.py": "", "src/sinuflow/ops/backends/cpp/waves.cpp": "", "tests/helper.py": "",
        "tests/a/test_b.py": "import sinuflow.a\n", "tests/a/test_b_edges.py": "", "tests/a/test_b_c.py": "",
        "tests/ops/test_waves.py": "from sinuflow.a import alone\n",
        "tests/test_x.py": "import os\nfrom sinuflow.a.alone import f\nfrom tests.helper import g\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("src/sinuflow/a/b.py", ["tests/a/test_b.py", "tests/a/test_b_edges.py"]),
        ("src/sinuflow/a/b_c.py", ["tests/a/test_b_c.py"]),
        ("src/sinuflow/a/alone.py", ["tests/ops/test_waves.py", "tests/test_x.py"]),
        ("src/sinuflow/a/__init__.py", ["tests/a/test_b.py", "tests/ops/test_waves.py", "tests/test_x.py"]),
        ("src/sinuflow/ops/backends/cpp/waves.cpp", ["tests/ops/test_waves.py"]),
        ("tests/helper.py", ["tests/test_x.py"]),
        ("tests/a/test_b.py", ["tests/a/test_b.py"]),
        ("docs/guide.md", ["tests/test_docs.py"]),
        ("Makefile", []),
    ],
)
def test_tests_of_a_file_are_its_mirror_or_those_that_import_it(project, path, tests):
    found = mirrored_tests(PurePath(path), project)
    assert [str(test) for test in found] == tests


def test_only_changes_to_the_package_check_its_types_and_imports():
    assert set(steps([PurePath("src/sinuflow/files.py")])) == {"style", "format", "types", "imports", "tests"}
    assert set(steps([PurePath("tests/test_files.py")])) == {"style", "format", "tests"}
    assert steps([PurePath("Makefile")]) == {}


def test_the_last_line_names_what_failed(tmp_path, capsys):
    name = ROOT / "tests" / "badly_formatted.py"
    try:
        name.write_text("x  =  1\n")
        assert main([str(name)]) == 1
    finally:
        name.unlink()
    assert capsys.readouterr().out.splitlines()[-1].startswith("check: FAILED: format (")
    assert main([str(tmp_path)]) == 2
    assert "is not in" in capsys.readouterr().out
