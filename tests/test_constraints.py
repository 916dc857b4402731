"""constraints-oldest.txt holds the lower bounds of pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_oldest_versions_are_the_lower_bounds():
    bounds = dict(re.findall(r'"([a-z0-9-]+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    pins = dict(re.findall(r"^([a-z0-9-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    run_time = re.findall(
        r'"([a-z0-9-]+)>=', (ROOT / "pyproject.toml").read_text().split("dev = [")[0].split("dependencies = [")[1]
    )
    assert pins.keys() >= set(run_time)
    for name in pins.keys() & bounds.keys():
        assert f"{pins[name]}.0".startswith(f"{bounds[name]}."), f"{name} is {pins[name]}, not {bounds[name]}"
