"""The items on images, as smoke tests on synthetic images of 8 by 8 pixels."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sinuflow import ArgumentError, DataError
from sinuflow.data.datasets import Splits
from sinuflow.data.image_sets import IMAGE_SETS
from sinuflow.paper import Options, images, reproduce
from sinuflow.paper.images import COMPARISON, downsample, load, shape_of, synthetic, trained_flows
from sinuflow.paper.page import page
from sinuflow.paper.reconstruction import round_trip
from sinuflow.paper.record import Result, write_record
from sinuflow.paper.tables import images_table

Found = dict[tuple[str, str, str], dict[str, Any]]


def by_key(figures: list[dict[str, Any]]) -> Found:
    return {(f["set"], f["model"], f["metric"]): f for f in figures}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Two trained flows: one by today's recipe, one by the paper's with its plateaus."""
    folder = tmp_path_factory.mktemp("images")
    chosen = Options(folder / "out", "smoke", device="cpu", runs=folder / "runs", progress=False)
    reproduce("images", replace(chosen, datasets=("mnist",), models=("today",)))
    reproduce("images", replace(chosen, datasets=("cifar10",), models=("paper",)))
    return chosen


def figures_of(item: str, options: Options) -> Found:
    return by_key(json.loads((options.out / f"{item}.json").read_text())["figures"])


@pytest.mark.parametrize(("name", "model"), [("mnist", "today"), ("cifar10", "paper")])
def test_flows_beat_the_histogram_baseline(name: str, model: str, options: Options) -> None:
    found = figures_of("images", options)
    ours = found[name, model, "test bits per dimension"]
    alone = found[name, "independent pixels", "test bits per dimension"]["value"]
    lines = (options.runs / name / f"{model}-0" / "history.jsonl").read_text().splitlines()  # type: ignore[operator]
    untrained = json.loads(lines[0])["val_bits_per_dimension"]
    assert ours["value"] < alone - 1
    assert ours["value"] < untrained - 1
    assert ours["validation"]["0"] == pytest.approx(ours["value"], abs=0.2)
    assert ours["validation"]["0"] == pytest.approx(
        min(json.loads(line)["val_bits_per_dimension"] for line in lines), abs=1e-4
    )
    assert ours["float32_error_max"]["0"] < 1e-4
    assert ours["standard_error_over_images"]["0"] < 0.1
    assert ours["rows"] == 200
    assert ours["paper"] is None
    assert ours["comparable"] == "no: a smaller run"


def test_the_score_is_that_of_the_density_in_float64(options: Options) -> None:
    (flow,) = trained_flows(("mnist",), options)
    images = torch.from_numpy(load("mnist", options).test)
    x = flow.logits(images).double()
    with torch.no_grad(), flow.on_device(torch.float64) as model:
        log_density = model().log_prob(x) + flow.pixels.ladj(x)
    want = float((8 - log_density / 64 / np.log(2)).mean())
    ours = figures_of("images", options)["mnist", "today", "test bits per dimension"]
    assert ours["value"] == pytest.approx(want, abs=1e-5)


def test_a_finished_run_is_read_and_gives_the_same(options: Options, tmp_path: Path) -> None:
    chosen = replace(options, out=tmp_path, datasets=("mnist",), models=("today",))
    again = by_key(reproduce("images", chosen))["mnist", "today", "test bits per dimension"]
    first = figures_of("images", options)["mnist", "today", "test bits per dimension"]
    assert (again["value"], again["seconds"]) == (first["value"], first["seconds"])


def test_samples_are_certified(options: Options) -> None:
    found = by_key(reproduce("samples", options))
    for name, model in (("mnist", "today"), ("cifar10", "paper")):
        assert found[name, model, "samples that are certified, percent"]["value"] == 100
        assert found[name, model, "largest residual of the inverse"]["value"] < 1e-3
        assert found[name, model, "pixels beyond black and white, percent"]["value"] < 50
    assert (options.out / "samples.png").stat().st_size > 5_000


@pytest.mark.parametrize("item", ["samples", "reconstruction", "runtime"])
def test_an_item_trains_flows_that_are_missing(
    item: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(images._STEPS, "smoke", 3)
    reproduce(item, replace(options, out=tmp_path, runs=tmp_path / "runs", datasets=("mnist",), models=("today",)))
    assert (tmp_path / f"{item}.json").is_file()


def test_reconstructions_get_better_with_iterations_and_the_certified_one_is_exact(options: Options) -> None:
    found = by_key(reproduce("reconstruction", options))
    for name, model in (("mnist", "today"), ("cifar10", "paper")):
        errors = [found[name, model, f"l2 error, iterations of Algorithm 1: {n}"]["value"] for n in (1, 10, 70)]
        assert errors[0] > 0.3  # visibly another image
        assert errors[0] > 3 * errors[2]
        assert found[name, model, "l2 error of the certified solver"]["value"] < 1e-4
        assert found[name, model, "images that look the same by the certified solver, percent"]["value"] == 100
        assert found[name, model, "images that the certified solver certifies, percent"]["value"] == 100
        assert found[name, model, "largest error of the certified solver in float32, 32 images"]["value"] < 1e-4
        assert found[name, model, "largest error of the certified solver in float64, 16 images"]["value"] < 1e-9
    assert (options.out / "reconstruction.png").stat().st_size > 5_000


def test_every_runtime_has_its_error_beside_it(options: Options) -> None:
    found = reproduce("runtime", options)
    assert len(found) == 2 * (1 + 2 * 2)
    for task in ("generate", "reconstruct"):
        ours = [f for f in found if f["task"] == task]
        certified = [f for f in ours if f["model"] == "certified"]
        algorithm_1 = {(f["tolerance"], f["iterations"]): f for f in ours if f["model"] == "Algorithm 1"}
        assert all(f["value"] > 0 for f in ours)
        assert [f["largest_error"] < 1e-4 for f in certified] == [True]
        assert [f["converged_percent"] for f in certified] == [100]
        assert algorithm_1[1e-5, 2]["largest_error"] > 0.01  # cut off, it is wrong
        assert algorithm_1[1e-5, 2]["converged_percent"] < 100  # and the library says so
        assert algorithm_1[1e-5, 50]["largest_error"] < algorithm_1[1e-5, 2]["largest_error"]
    shown = (options.out / "runtime.md").read_text()
    assert "Seconds to generate 4 images of cifar10" in shown
    assert "Seconds to reconstruct 4 images of cifar10" in shown
    assert (options.out / "runtime.png").stat().st_size > 5_000


def test_the_page_shows_the_items_that_were_run(options: Options) -> None:
    shown = page(options.out)
    assert "Still to be run: transformer, gaussians" in shown
    assert "## images" in shown
    assert "| mnist | Sinusoidal Flow, the paper's architecture |" in shown
    assert "| Glow | 1.05 | 3.35 |" in shown


def test_percentages_have_four_digits(tmp_path: Path) -> None:
    metric = "images that the certified solver certifies, percent"
    figure = Result("mnist", metric, "today", {0: 99.99})
    write_record(tmp_path / "reconstruction.json", [figure], "sinuflow reproduce reconstruction", "cpu")
    assert "| mnist, today | 99.99 |" in page(tmp_path)


def test_the_first_model_that_exists_is_shown(options: Options, tmp_path: Path) -> None:
    shutil.copytree(options.runs / "mnist" / "today-0", tmp_path / "mnist" / "best-0")  # type: ignore[operator]
    (flow,) = trained_flows(("mnist",), replace(options, runs=tmp_path))
    assert flow.model == "best"


def refused(item: str, options: Options, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        reproduce(item, options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("item", ["samples", "reconstruction", "runtime"])
def test_without_a_trained_flow_the_error_says_what_to_run(item: str, tmp_path: Path) -> None:
    chosen = Options(tmp_path, "quick", device="cpu", datasets=("cifar10",), data=Path("sets"), progress=False)
    assert "no --runs was given: run `sinuflow reproduce images --quick --set cifar10" in refused(
        item, chosen, ArgumentError
    )
    message = refused(item, replace(chosen, size="full", runs=Path("runs"), seeds=(3,)), ArgumentError)
    assert message.endswith(
        "there is none in runs/cifar10: run `sinuflow reproduce images --set cifar10 --model today --seed 3 "
        "--data sets --runs runs` first"
    )


def test_without_data_the_error_says_where_to_get_them(options: Options, tmp_path: Path) -> None:
    for data in (None, tmp_path):
        for item, chosen in (("images", replace(options, size="full")), ("samples", replace(options, size="quick"))):
            message = refused(item, replace(chosen, data=data, out=tmp_path, datasets=("mnist",)), DataError)
            assert IMAGE_SETS["mnist"].source in message
            assert "sinuflow data prepare mnist" in message
    assert "sinuflow data prepare mnist" in refused("images", Options(tmp_path, "quick", device="cpu"), DataError)


def test_inconsistent_options_are_refused(options: Options, tmp_path: Path) -> None:
    full = replace(options, size="full", out=tmp_path, datasets=("mnist",))
    assert "holds another run than the recipe's: add --quick" in refused("samples", full, ArgumentError)
    other = replace(options, out=tmp_path)
    assert "one --seed" in refused("samples", replace(other, seeds=(0, 1)), ArgumentError)
    assert "no recipe glow" in refused("samples", replace(other, models=("glow",)), ArgumentError)
    assert "no recipe glow" in refused("images", replace(other, models=("glow",)), ArgumentError)
    assert "no dataset 'power'" in refused("images", replace(other, datasets=("power",)), ArgumentError)
    with pytest.raises(ArgumentError, match="cannot be downsampled"):
        downsample(synthetic(1, (1, 28, 28)), (1, 8, 8))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few images where MNIST should be."""
    folder = tmp_path_factory.mktemp("sets")
    (folder / "mnist").mkdir()
    for seed, split in enumerate(Splits._fields):
        np.save(folder / "mnist" / f"{split}.npy", synthetic(70, (1, 28, 28), seed).numpy())
    return folder


def test_a_quick_run_trains_on_images_of_half_the_size(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(images._STEPS, "quick", 2)
    chosen = Options(tmp_path, "quick", device="cpu", data=data, runs=tmp_path / "runs", progress=False)
    alone, ours = reproduce("images", replace(chosen, models=("today",)))
    assert ours["comparable"] == alone["comparable"] == "no: a smaller run"
    assert ours["rows"] == 70
    (flow,) = trained_flows(IMAGE_SETS, chosen)  # CIFAR-10 is left out
    assert flow.shape == shape_of("mnist", chosen) == (1, 14, 14)
    assert by_key(reproduce("samples", chosen))["mnist", "today", "samples that are certified, percent"]["value"] == 100


def test_results_on_other_images_are_not_comparable(data: Path) -> None:
    full, comparable = Options(Path("out"), data=data), COMPARISON.comparable
    few = load("mnist", full)
    whole = Splits(*(np.broadcast_to(few.train[:1], (n, 1, 28, 28)) for n in IMAGE_SETS["mnist"].sizes))
    assert comparable("mnist", "paper", few, full) == "no: other images than the published ones"
    assert comparable("mnist", "paper", whole, full) == IMAGE_SETS["mnist"].comparable
    assert comparable("mnist", "today", whole, full).endswith("; other training settings")
    for model in ("best", "affine"):
        assert comparable("mnist", model, whole, full).endswith("; other architecture and training settings")


def test_algorithm_1_that_diverges_does_not_converge(options: Options) -> None:
    (flow,) = trained_flows(("mnist",), options)
    x = flow.logits(synthetic(3, (1, 8, 8)))
    with torch.no_grad():
        _, converged = round_trip(flow, x, solver="fixed_point", rtol=0, atol=0, max_iterations=1)
    assert not converged.any()
    black = flow.images(torch.full((1, 64), torch.nan))
    assert int(black.max()) == 0


def test_the_table_puts_the_best_first() -> None:
    common = {"set": "mnist", "spread": None, "seeds": [0], "paper": 1.06, "seconds": 60.0, "hardware": "GPU"}
    common |= {"comparable": "yes", "float32_error_max": {"0": 2e-5}}
    lines = images_table(
        [common | {"model": "paper", "value": 1.07}, common | {"model": "today", "value": 1.02}]
    ).splitlines()
    assert (
        lines[5] == "| mnist | Sinusoidal Flow, the paper's architecture | 1.020 | 1 | 2e-05 | 1.06 | 60 s, GPU | yes |"
    )
    assert lines[6].startswith("| mnist | Sinusoidal Flow, the paper's recipe | 1.070")
