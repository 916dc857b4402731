from __future__ import annotations

from pathlib import Path

from sinuflow.paper import Options
from sinuflow.paper.ldu import run


def test_the_parameters_of_power(tmp_path: Path) -> None:
    (figure,) = run(Options(tmp_path, "smoke"))
    shift = 6 * 256 + 256 + 256 * 256 + 256 + 256 * 6 + 6
    scales = 4 * 6 * (3 * 4 + 2)
    assert figure.value == 12 * (2 * shift + scales) + 2 * 6
    assert f"= {int(figure.value):,} parameters" in (tmp_path / "ldu.svg").read_text()
    assert 0 < figure.extra["masked"] < figure.value
