from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinuflow import StorageError
from sinuflow.paper import Result
from sinuflow.paper.record import read_record, write_record

FIELDS = {
    "set", "metric", "value", "paper", "rows", "seeds", "spread", "steps", "seconds", "hardware", "versions", "command",
    "comparable",
}  # fmt: skip


def write(path: Path, *results: Result) -> dict[str, object]:
    return write_record(path, list(results), "sinuflow reproduce x", "cpu")[-1]


def test_an_entry_has_all_fields(tmp_path: Path) -> None:
    found = write(tmp_path / "x.json", Result("power", "NLL", "ours", {0: 1.0, 1: 3.0}, seconds=2.0))
    assert set(found) >= FIELDS
    assert found["value"] == 2.0
    assert found["spread"] == pytest.approx(2**0.5)
    assert found["seeds"] == [0, 1]
    assert json.loads((tmp_path / "x.json").read_text())["figures"] == [found]


def test_seeds_of_several_runs_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, Result("power", "NLL", "ours", {0: 1.0}, seconds=2.0, extra={"best_step": {"0": 10}}))
    joined = write(path, Result("power", "NLL", "ours", {2: 5.0}, seconds=3.0, extra={"best_step": {"2": 30}}))
    assert joined["values"] == [1.0, 5.0]
    assert joined["seeds"] == [0, 2]
    assert joined["value"] == 3.0
    assert joined["seconds"] == 5.0
    assert joined["best_step"] == {"0": 10, "2": 30}
    again = write(path, Result("power", "NLL", "ours", {2: 7.0}, seconds=3.0, extra={"best_step": {"2": 31}}))
    assert again["values"] == [1.0, 7.0]


def test_a_run_of_another_size_replaces_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, Result("power", "NLL", "ours", {0: 1.0}, seconds=1.0, extra={"size": "full"}))
    new = write(path, Result("power", "NLL", "ours", {1: 5.0}, seconds=1.0, extra={"size": "smoke"}))
    assert new["seeds"] == [1]
    assert len(read_record(path)) == 1


def test_other_models_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, Result("power", "NLL", "ours", {0: 1.0}))
    write(path, Result("power", "NLL", "theirs", {0: 2.0}))
    assert [figure["model"] for figure in read_record(path)] == ["ours", "theirs"]


def test_non_finite_values_are_stored_as_none(tmp_path: Path) -> None:
    assert write(tmp_path / "x.json", Result("power", "NLL", "ours", {0: float("inf")}))["value"] is None


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("my notes")
    with pytest.raises(StorageError, match="not a record"):
        write(path, Result("power", "NLL", "ours", {0: 1.0}))
    assert path.read_text() == "my notes"


def test_the_time_is_the_sum_over_seeds(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for seed in (0, 1, 2, 1):
        last = write(path, Result("power", "NLL", "ours", {seed: 1.0}, seconds=10.0))
    assert last["seconds"] == 30.0


def test_another_recipe_replaces_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, Result("power", "NLL", "ours", {0: 1.0}, extra={"recipe": "a"}))
    assert write(path, Result("power", "NLL", "ours", {1: 5.0}, extra={"recipe": "b"}))["seeds"] == [1]


def test_with_a_failed_seed_there_is_no_mean(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, Result("power", "NLL", "ours", {0: float("inf")}, extra={"worst": {"0": float("nan")}}))
    joined = write(path, Result("power", "NLL", "ours", {1: 5.0}))
    assert joined["values"] == [None, 5.0]
    assert joined["value"] is None
    assert joined["worst"] == {"0": None}
