"""The snippets of the documentation run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sinuflow.paper.page import page

ROOT = Path(__file__).parent.parent


def snippets(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", ["docs/guide.md", "docs/tables.md", "docs/data.md"])
def test_snippets_run_one_after_the_other(page, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = snippets(page)
    assert code
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_page_of_results_is_that_of_the_records():
    folder = ROOT / "docs" / "results"
    written = (folder / "README.md").read_text(encoding="utf-8")
    assert written == page(folder), "run: python -m sinuflow.paper.page docs/results"


def test_the_quick_start_of_the_readme_runs(tmp_path):
    code = snippets("README.md")
    start = "import numpy as np\nfrom sklearn.datasets import load_iris\n"
    start += "data = load_iris(as_frame=True).data\ndata.to_csv('tumours.csv', index=False)\nX = data.to_numpy()\n"
    code = code.replace("SinusoidalDensity().fit", "SinusoidalDensity(steps=20).fit")
    result = subprocess.run(
        [sys.executable, "-c", start + code],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_promise_names_tests_that_exist():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`(?:, `::(\w+)`)?(?:, `::(\w+)`)?", text)
    assert len(named) > 30
    for file, *functions in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        for function in filter(None, functions):
            assert f"def {function}(" in source, f"{file} has no {function}"
