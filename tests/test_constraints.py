"""constraints-oldest.txt holds the lower bounds of pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_oldest_versions_are_the_lower_bounds():
    bounds = dict(re.findall(r'"([a-z0-9-]+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    pins = dict(re.findall(r"^([a-z0-9-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    assert len(pins) > 15
    for name, version in pins.items():
        assert (version + ".0").startswith(bounds[name] + "."), (
            f"{name} is {version}, pyproject.toml allows {bounds[name]}"
        )
