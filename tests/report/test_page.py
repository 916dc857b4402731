from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from sinuflow.errors import ArgumentError, SinuflowError, StorageError
from sinuflow.report import render, write
from sinuflow.report.content import ReportContent, Score
from sinuflow.report.page import verdict
from tests.processes import python

from . import fake
from .fake import HOSTILE, column, content, score

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a browser would find: tags with attributes, ids, and the text outside the style sheet."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_style = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag):
        self._in_style = False

    def handle_data(self, data):
        if not self._in_style:
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def small(rows: int = 100, **changes) -> ReportContent:
    """Content that is drawn fast: one column."""
    return content(columns=[column("x", "number", np.arange(rows), np.arange(rows))], **changes)


@pytest.fixture(scope="module")
def html() -> str:
    return render(content())


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_the_headline_numbers(page):
    for text in (
        "6.103",
        "± 0.031",
        "8.805",
        "1.221",
        "+1.778 ± 0.023",
        "+0.668",
        f"\N{MINUS SIGN}{6.1034 + 0.0312 * 1999**0.5:.1f}",
    ):
        assert text in page.text
    assert "The model is better than the best baseline, Kernel density, by 0.668 nats per row." in page.text
    assert "2,000 held-out rows were mapped to noise and back" in page.text
    assert "3.1·10⁻⁶" in page.text
    assert "Samples can resemble training rows" in page.text


def test_the_page_has_all_content(page):
    given = content()
    for text in [*given.facts, *given.facts.values(), *given.notes, given.title, *(c.name for c in given.columns)]:
        assert text in page.text
    assert str(given.anomalies[0].row) in page.text


def test_the_page_loads_nothing_and_runs_no_script(html, page):
    assert not page.all("script")
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("href", "src")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_every_id_is_unique_and_every_reference_has_one(html, page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)
    assert {a["href"][1:] for _, a in page.tags if a.get("href", "").startswith("#")} <= set(ids)


def test_every_figure_has_a_label(page):
    figures = page.all("svg")
    assert len(figures) == 2 + 5 + 10 + 5 + 1
    assert all(figure["role"] == "img" and figure["aria-label"] for figure in figures)
    assert len({figure["aria-label"] for figure in figures}) == len(figures)


def test_figures_take_their_colours_from_the_page(html):
    assert "var(--ink)" in html
    assert "var(--model)" in html
    assert re.search(r"<text[^>]*var\(--muted\)[^>]*>correlation</text>", html)
    styles = re.findall(r'style="([^"]*)"', html)
    assert not [style for style in styles if re.search(r"#[0-9a-f]{3,6}", re.sub(r"url\([^)]*\)", "", style))]


def test_figures_are_reproducible():
    script = (
        "import hashlib; from tests.report import fake; from sinuflow.report import render; "
        "print(hashlib.sha256(render(fake.content(300)).encode()).hexdigest()); "
        "import sys; assert 'matplotlib.pyplot' not in sys.modules"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "MPLBACKEND": "svg"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_matplotlib_settings_are_ignored_and_preserved():
    import matplotlib

    given = content(300)
    expected = render(given)
    with matplotlib.rc_context({"font.size": 30, "text.usetex": True, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        assert render(given) == expected
        assert dict(matplotlib.rcParams) == before


NAMES = [
    HOSTILE,
    "a$b$c",
    r"$\frac{",
    "&amp;'\"",
    "x" * 300,
    "",
    "名前 🙂",
    "tab\tnew\nline\x00\x1b",
    "#010101",
    "\ud800",
]


@pytest.fixture(scope="module")
def hostile():
    rng = np.random.default_rng(0)
    columns = [column(name, "number", rng.normal(size=90), rng.normal(size=90), map=name) for name in NAMES]
    columns += [column(f"{name} kind", "category", [name, "b"] * 45, [name, "b"] * 45) for name in NAMES]
    given = content()
    return dataclasses.replace(
        given,
        title=HOSTILE,
        columns=columns,
        facts={name: name for name in NAMES},
        z=rng.normal(size=(90, len(columns))),
        model=dataclasses.replace(given.model, name=HOSTILE),
        baselines=[score(HOSTILE, 7.0, 0.1)],
        notes=NAMES,
    )


def test_names_are_escaped(hostile, tmp_path):
    write(hostile, tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text("utf-8")
    assert html.endswith("</html>")
    page = Page(html)
    assert not page.all("script")
    assert "<script" not in html.lower()
    for name in (HOSTILE, "a$b$c", r"$\frac{", "&amp;'\"", "x" * 300, "名前 🙂", "#010101"):
        assert name in page.text
    assert "xxxx…xxxx" in page.text


def test_dollar_signs_are_not_math(hostile):
    pairs = render(dataclasses.replace(hostile, columns=hostile.columns[1:3], z=hostile.z[:, 1:3]))
    inside = re.findall(r"<text[^>]*>([^<]*)</text>", pairs)
    assert "a$b$c" in inside
    assert r"$\frac{" in inside


def test_writing_replaces_the_file_or_fails_with_one_line(tmp_path):
    path = tmp_path / "r.html"
    path.write_text("old")
    write(small(), str(path))
    assert path.read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(StorageError, match="cannot write"):
        write(small(), tmp_path / "missing" / "r.html")


def test_sixty_columns_are_capped_with_a_note():
    start = time.perf_counter()
    html = render(fake.wide(60))
    assert time.perf_counter() - start < 30
    assert len(html.encode()) < 5_000_000
    text = Page(html).text
    assert "Not drawn: the 30 columns where samples and data agree best." in text
    assert "5 of 60 columns with the strongest rank correlations" in text
    assert "Not drawn: 48 dimensions, all closer to normal than these." in text
    assert "Not shown: 20 more columns." in text
    assert all(f"measurement number {i} of the long experiment" in text for i in range(60))


def test_very_many_columns_are_capped_with_a_note():
    text = Page(render(fake.wide(230, rows=100))).text
    assert "Not listed: 30 more columns." in text
    assert "Drawn are the 64 of 230 dimensions" in text


def test_odd_columns_are_drawn():
    rng = np.random.default_rng(0)
    columns = [
        column("one category", "category", ["a"] * 50, ["a"] * 50),
        column("all equal", "number", np.full(50, 3.0), np.full(50, 3.0)),
        column("with gaps", "number", np.where(np.arange(50) % 2, np.nan, 1.0), rng.normal(size=50)),
        column("no numbers", "number", np.full(50, np.nan), rng.normal(size=50)),
        column("huge", "number", 1e299 * rng.normal(size=50), 1e308 * np.ones(50)),
        column("offset", "number", 1e9 + 1e-3 * rng.normal(size=50), 1e9 + 1e-3 * rng.normal(size=50)),
        column("many", "category", [f"c{i}" for i in range(50)], [f"c{i}" for i in range(50)]),
    ]
    z = np.tile(np.stack([np.full(50, np.nan), np.zeros(50), 100 * rng.normal(size=50)], axis=1), 3)
    page = Page(render(content(columns=columns, z=z[:, : len(columns)], anomalies=[])))
    assert "always a" in page.text
    assert "Cut off: 100.0 % of the samples." in page.text
    assert "50 beyond ±4.5" in page.text
    assert "nan" not in page.text.lower().replace("nats", "")


def test_the_least_normal_dimension_comes_first():
    z = np.random.default_rng(0).normal(size=(500, 3)) * [1, 1, 2]
    html = render(content(columns=[column(n, "number", z[:, 0], z[:, 0]) for n in ("first", "second", "third")], z=z))
    assert html.index("noise of third") < html.index("noise of first")
    assert "Of 3 dimensions, 1 differs significantly from normal" in html


@pytest.mark.parametrize("broken", [None, float("nan"), float("inf")])
def test_missing_values_in_the_history_are_skipped(broken):
    history = [{"step": i, "train_nll": 3.0 - i / 100, "val_nll": broken} for i in range(100)]
    page = Page(render(small(history=history)))
    assert "whose weights were selected" in page.text
    assert "No training history" not in page.text
    assert "Learning rate" not in page.text


def test_a_long_history_is_thinned():
    history = [{"step": i, "train_nll": 3 + 500 / (1 + i), "learning_rate": 0.0} for i in range(20_000)]
    html = render(small(history=history, best_step=19_999))
    assert len(html) < 500_000
    assert "High values, as in the first steps, are cut off." in html


@pytest.mark.parametrize("history", [[], [{"step": 1.0}], [{"train_nll": 2.0}]])
def test_an_empty_history_is_stated(history):
    assert "No training history was recorded." in render(small(history=history))


def test_one_row_gives_a_page():
    nothing = {"history": [], "baselines": [], "anomalies": [], "facts": {}, "notes": []}
    page = Page(render(small(rows=1, model=Score("flow", np.array([-np.inf])), **nothing)))
    for text in ("The model's score is not finite", "1 held-out row was mapped", "None were recorded"):
        assert text in page.text
    assert len(page.all("svg")) == 2


@pytest.mark.parametrize(
    ("model", "baselines", "sentence"),
    [
        (5.0, [], "There is no baseline to compare with."),
        (5.0, [5.1], "is not significant: 0.100 nats per row"),
        (5.0, [4.0, 9.0], "The model is worse than a baseline: b is better by 1.000 nats per row."),
        (5.0, [float("nan"), 6.5], "The model is better than the best baseline, b, by 1.500 nats per row."),
        (5.0, [float("inf")], "The model is better than the best baseline, b, by ∞ nats per row."),
        (float("inf"), [4.0], "The model's score is not finite"),
    ],
)
def test_the_verdict(model, baselines, sentence):
    scores = [score("b", nll, 0.2) for nll in baselines]
    assert sentence in verdict(small(model=score("flow", model, 0.1), baselines=scores))


def test_a_round_trip_is_judged_by_its_size():
    text = Page(render(small(round_trip=0.0079))).text
    assert "Limited accuracy." in text
    assert "off by 0.0079 standard deviations" in text


@pytest.mark.parametrize("round_trip", [0.5, float("nan"), float("inf")])
def test_a_failed_round_trip_is_reported(round_trip):
    text = Page(render(small(round_trip=round_trip))).text
    assert "Not verified." in text
    assert "do not trust this model's samples" in text


def test_inconsistent_content_is_refused():
    with pytest.raises(ArgumentError, match=r"z has shape \(2000, 3\)"):
        content(z=np.zeros((2000, 3)))
    with pytest.raises(ArgumentError, match=r"lengths \[\(1, 1\), \(1, 2\)\]"):
        content(columns=[column("a", "number", [1.0], [1.0, 2.0]), column("b", "number", [1.0], [1.0])])


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_a_missing_extra_gives_one_line(missing):
    script = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from tests.report.fake import content\n"
        "from sinuflow.report import render\n"
        "try: render(content(50))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = python(script, cwd=ROOT)
    expected = "the report needs matplotlib and jinja2: pip install 'sinuflow[cli]'"
    assert done.stdout.strip() == f"{SinuflowError.__name__} {expected}"
