"""The snippets of the documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sinuflow.paper.page import page
from tests.processes import python

ROOT = Path(__file__).parent.parent
#: What only takes longer; tests/test_compile.py has the default backend.
QUICKER = {
    "docs/guide.md": {
        "steps=400": "steps=40",
        "range(50)": "range(5)",
        "steps=60": "steps=10",
        "fullgraph=True": 'fullgraph=True, backend="aot_eager"',
    }
}


def snippets(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", ["docs/guide.md", "docs/tables.md", "docs/data.md"])
def test_snippets_run_one_after_the_other(page, tmp_path):
    code = snippets(page)
    assert code
    for slow, quick in QUICKER.get(page, {}).items():
        assert slow in code
        code = code.replace(slow, quick)
    result = python(code, cwd=tmp_path)
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
    result = python(start + code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_every_promise_names_tests_that_exist():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`(?:, `::(\w+)`)?(?:, `::(\w+)`)?", text)
    assert len(named) > 30
    for file, *functions in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        for function in filter(None, functions):
            assert f"def {function}(" in source, f"{file} has no {function}"
