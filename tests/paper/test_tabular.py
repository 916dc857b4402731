from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sinuflow import ArgumentError, DataError
from sinuflow.paper import Options, reproduce
from sinuflow.paper.recipes import recipes
from sinuflow.report.baselines import gaussian_log_density


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two clusters, in the folder of a dataset with eight columns."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    (folder / "gas-small").mkdir()
    for name, rows in (("train", 2000), ("val", 400), ("test", 400)):
        x = random.normal(size=(rows, 8)) * 0.3 + np.where(random.random((rows, 1)) < 0.5, -1, 1)
        np.save(folder / "gas-small" / f"{name}.npy", x.astype(np.float32))
    return folder


def options(out: Path, data: Path | None, **others: object) -> Options:
    return Options(out, "smoke", device="cpu", data=data, datasets=("gas-small",), progress=False, **others)  # type: ignore[arg-type]


def test_every_model_is_trained_and_scored(data: Path, tmp_path: Path) -> None:
    found = {figure["model"]: figure for figure in reproduce("tabular", options(tmp_path, data))}
    assert set(found) == {"best", "maf", "nsf"}
    train, test = (np.load(data / "gas-small" / f"{part}.npy")[:400] for part in ("train", "test"))
    gaussian = -gaussian_log_density(train, test).mean()
    for model, figure in found.items():
        assert figure["value"] < gaussian + 6, model  # forty steps are not many
        assert figure["float32_error_mean"]["0"] < 1e-4
        assert figure["comparable"].startswith("no")
        assert figure["paper"] is None
        assert figure["rows"] == 400
    assert found["best"]["value"] < 10  # untrained, it is 8 log(2 pi) / 2 + ... = 11.7
    assert "| gas-small | NSF (zuko) |" in (tmp_path / "tabular.md").read_text()


def test_a_finished_run_is_read_and_gives_the_same(data: Path, tmp_path: Path) -> None:
    chosen = options(tmp_path / "a", data, models=("best",), runs=tmp_path / "runs", seeds=(3,))
    (first,) = reproduce("tabular", chosen)
    history = (tmp_path / "runs" / "gas-small" / "best-3" / "history.jsonl").read_text()
    (again,) = reproduce("tabular", options(tmp_path / "b", data, models=("best",), runs=tmp_path / "runs", seeds=(3,)))
    assert again["value"] == first["value"]
    assert again["seconds"] == first["seconds"]
    assert again["hardware"] == first["hardware"]
    assert (tmp_path / "runs" / "gas-small" / "best-3" / "history.jsonl").read_text() == history


def test_a_run_with_other_settings_is_refused(data: Path, tmp_path: Path) -> None:
    chosen = options(tmp_path, data, models=("best",), runs=tmp_path / "runs")
    reproduce("tabular", chosen)
    path = tmp_path / "runs" / "gas-small" / "best-0" / "run.json"
    stored = json.loads(path.read_text())
    stored["told"]["training"]["batch_size"] = 7
    path.write_text(json.dumps(stored))
    with pytest.raises(ArgumentError, match="other settings"):
        reproduce("tabular", chosen)


def test_as_long_as_gives_the_same_training_time(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = recipes("gas-small")
    short = {name: replace(known[name], training=known[name].training | {"steps": 20}) for name in ("best", "maf")}
    short["maf"] = replace(short["maf"], as_long_as="best")
    monkeypatch.setattr("sinuflow.paper.training.recipes", lambda _: short)
    full = replace(options(tmp_path, data), size="full")
    with pytest.raises(ArgumentError, match="run gas-small with --model best first"):
        reproduce("tabular", replace(full, models=("maf",)))
    ours, theirs = reproduce("tabular", full)
    assert (ours["model"], ours["steps"]) == ("best", 20)
    assert theirs["steps"] != 20  # as many as the time allows
    assert theirs["seconds"] < 10 * ours["seconds"] + 5


def test_without_data_the_error_says_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        reproduce("tabular", Options(tmp_path, "smoke", data=tmp_path, datasets=("power",), progress=False))
    assert "sinuflow data prepare power" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_model_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no recipe glow; there are best, maf, nsf"):
        reproduce("tabular", options(tmp_path, data, models=("glow",)))
