"""The code blocks of the documentation run, its links resolve, and its tables match their sources."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

from sinuflow.paper.page import page
from sinuflow.registry import Component
from tests.processes import python

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
#: Replacements that only save time; tests/test_compile.py has the default backend.
FASTER = {
    "docs/guide.md": {
        "steps=400": "steps=40",
        "range(50)": "range(5)",
        "steps=60": "steps=10",
        "fullgraph=True": 'fullgraph=True, backend="aot_eager"',
    },
    "docs/tutorials/table.md": {"steps=200": "steps=40"},
}


def code_blocks(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize(
    "page",
    [
        "docs/guide.md",
        "docs/extending.md",
        "docs/tutorials/table.md",
        "docs/how-to/tables.md",
        "docs/how-to/images.md",
        "docs/reference/datasets.md",
    ],
)
def test_code_blocks_run_one_after_the_other(page, tmp_path):
    code = code_blocks(page)
    assert code
    for slow, fast in FASTER.get(page, {}).items():
        assert slow in code
        code = code.replace(slow, fast)
    result = python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_code_blocks_of_the_readme_run(tmp_path):
    code = code_blocks("README.md")
    start = "import numpy as np\nfrom sklearn.datasets import load_iris\n"
    start += "data = load_iris(as_frame=True).data\ndata.to_csv('tumours.csv', index=False)\nX = data.to_numpy()\n"
    code = code.replace("SinusoidalDensity().fit", "SinusoidalDensity(steps=20).fit")
    result = python(start + code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_names_that_version_0_1_documents_can_be_imported():
    old, new = (importlib.import_module(name) for name in ("sinuflow.pixels", "sinuflow.bijections.pixels"))
    assert old.PixelMap is new.PixelMap
    with pytest.warns(DeprecationWarning, match="SinusoidalLayer"):
        assert importlib.import_module("sinuflow.bijections").SinusoidalScale.__name__ == "SinusoidalLayer"


def test_the_results_page_matches_the_records():
    folder = ROOT / "docs" / "results"
    written = (folder / "README.md").read_text(encoding="utf-8")
    assert written == page(folder), "run: python -m sinuflow.paper.page docs/results"


def test_the_architecture_page_has_the_actual_call_trace():
    folder = ROOT / "docs" / "explanation"
    code = (folder / "trace_calls.py").read_text(encoding="utf-8")
    result = python(code, env={**os.environ, "SINUFLOW_KERNELS": "reference"})
    assert result.returncode == 0, result.stderr
    page = (folder / "architecture.md").read_text(encoding="utf-8")
    command = "SINUFLOW_KERNELS=reference python docs/explanation/trace_calls.py docs/explanation/architecture.md"
    assert f"```\n{result.stdout}```" in page, f"run: {command}"


def test_every_promise_names_tests_that_exist():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`(?:, `::(\w+)`)?(?:, `::(\w+)`)?", text)
    assert len(named) > 30
    for file, *functions in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        for function in filter(None, functions):
            assert f"def {function}(" in source, f"{file} has no {function}"


@pytest.mark.parametrize("package", ["transformers", "conditioners", "bijections"])
def test_the_reference_lists_all_components(package):
    text = (ROOT / "docs" / "reference" / "components.md").read_text(encoding="utf-8")
    section = text.split(f"## `sinuflow.{package}`")[1].split("\n## ")[0]
    module = importlib.import_module(f"sinuflow.{package}")
    public = {name: getattr(module, name) for name in module.__all__}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    components = [name for name, value in classes.items() if issubclass(value, Component)]
    assert components
    assert [name for name in components if f"`{name}`" not in section] == []


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / name).resolve() for name in re.findall(r"\]\(([^)#]+)\)", index.read_text("utf-8"))}
    generated = {"images.md", "tabular.md", "runtime.md"}
    pages = {path for path in PAGES if path.is_relative_to(index.parent) and path.name not in generated}
    assert pages - {index} - linked == set()
