"""``sinuflow reproduce`` as users run it."""

from __future__ import annotations

import json
from pathlib import Path

from sinuflow.paper import ITEMS
from tests.cli.test_commands import fails, succeeds


def test_the_list_names_every_item_and_its_time(tmp_path: Path) -> None:
    shown = succeeds("reproduce", "--list", cwd=tmp_path)
    for item in ITEMS.values():
        assert item.name in shown
        assert f"--quick {item.cpu}, on a GPU {item.gpu}" in shown


def test_an_item_is_run_and_recorded(tmp_path: Path) -> None:
    shown = succeeds("reproduce", "transformer", "--smoke", "--out", "there", cwd=tmp_path)
    assert "smallest derivative 0.1388" in shown
    record = json.loads((tmp_path / "there" / "transformer.json").read_text())
    assert record["figures"][0]["command"] == "sinuflow reproduce transformer --smoke"  # without places


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    assert "choose one of transformer, gaussians" in fails("reproduce", "everything", cwd=tmp_path)
    assert "--quick and --smoke" in fails("reproduce", "shapes", "--quick", "--smoke", cwd=tmp_path)


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    assert "does not take --set" in fails("reproduce", "transformer", "--set", "moons", cwd=tmp_path)
    assert "no recipe glow" in fails("reproduce", "shapes", "--smoke", "--model", "glow", "--out", ".", cwd=tmp_path)
    assert "device must be" in fails("reproduce", "ldu", "--device", "abacus", cwd=tmp_path)


def test_a_larger_run_is_not_replaced_by_a_smaller_one(tmp_path: Path) -> None:
    record = {"item": "shapes", "figures": [{"set": "moons", "metric": "KL", "model": "today", "size": "full"}]}
    (tmp_path / "shapes.json").write_text(json.dumps(record))
    assert "add --force" in fails("reproduce", "shapes", "--smoke", "--out", ".", cwd=tmp_path)


def test_missing_data_are_one_line(tmp_path: Path) -> None:
    told = fails("reproduce", "tabular", "--smoke", "--set", "power", "--out", ".", "--data", ".", cwd=tmp_path)
    assert "sinuflow data prepare power" in told
