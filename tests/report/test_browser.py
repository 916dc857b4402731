"""The page in a real browser."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from sinuflow import fit_table
from sinuflow.report import write
from sinuflow.report.collect import collect

from . import fake

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found on this machine")

COLOURS = """() => {
  const style = (e, name) => getComputedStyle(document.querySelector(e))[name];
  return {page: style('body', 'backgroundColor'), panel: style('section', 'backgroundColor'),
          ink: style('body', 'color'), muted: style('figcaption', 'color'), label: style('svg text', 'fill'),
          link: style('nav a', 'color')};
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=["usual", "wide", "fitted"])
def file(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    made = {"usual": fake.content, "wide": fake.wide, "fitted": fitted_content}
    write(made[request.param](), path)
    return path


def fitted_content():
    """What a real model of a table with hostile names gives."""
    random = np.random.default_rng(0)
    a = random.normal(size=300)
    frame = pd.DataFrame({"<script>alert(1)</script>": a, "b": np.exp(a), "c": random.poisson(3, 300), "d": -a + 1e-3})
    frame["kind"] = random.choice(["<b>x</b>", "$y^2$"], 300)
    model = fit_table(frame, steps=40, progress=False, device="cpu")
    return collect(model, frame)


@pytest.fixture
def open_page(browser, file):
    """Open the page, and afterwards check that it fetched nothing and complained of nothing."""
    contexts, requests, complaints = [], [], []

    def start(width=1200, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(file.as_uri())
        return page

    yield start
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()] * len(contexts)
    assert complaints == []
    for context in contexts:
        context.close()


def test_headings_and_figures_are_visible(open_page):
    page = open_page()
    headings = page.locator("h1, h2")
    assert headings.count() >= 9
    assert all(heading.is_visible() for heading in headings.all())
    sizes = page.eval_on_selector_all("svg", "all => all.map(e => [e.clientWidth, e.clientHeight])")
    assert len(sizes) > 10
    assert all(width > 100 and height > 100 for width, height in sizes)


@pytest.mark.parametrize("width", [360, 390, 768])
def test_the_page_has_no_horizontal_overflow(open_page, width):
    page = open_page(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_text_stays_inside_its_figure(open_page):
    """Text is measured in one font and shown in another."""
    page = open_page()
    outside = page.evaluate(
        """() => [...document.querySelectorAll('svg')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(t => {
                const r = t.getBoundingClientRect();
                return Math.min(r.left - box.left, box.right - r.right, r.top - box.top, box.bottom - r.bottom) < -2;
            }).map(t => svg.getAttribute('aria-label') + ': ' + t.textContent);
        })"""
    )
    assert outside == []


def test_images_inside_figures_are_drawn(open_page):
    page = open_page()
    images = page.locator("svg image")
    assert images.count() >= 10
    assert all((box := image.bounding_box()) and box["width"] > 3 for image in images.all())


def test_light_and_dark_are_both_legible(open_page):
    light, dark = (open_page(scheme=scheme).evaluate(COLOURS) for scheme in ("light", "dark"))
    assert light["page"] != dark["page"]
    assert luminance(light["page"]) > 0.8
    assert luminance(dark["page"]) < 0.05
    for colours in (light, dark):
        assert contrast(colours["ink"], colours["page"]) >= 7
        assert contrast(colours["ink"], colours["panel"]) >= 7
        for text in ("muted", "label"):
            assert contrast(colours[text], colours["panel"]) >= 4.5
        assert contrast(colours["link"], colours["page"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """(L₁ + 0.05)/(L₂ + 0.05), as WCAG defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
