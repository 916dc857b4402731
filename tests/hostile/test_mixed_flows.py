"""Files of mixed flows: sizes that no tensors have are refused within bounds."""

from __future__ import annotations

import copy

import pytest
import torch

import sinuflow
from sinuflow import SinusoidalFlow, StorageError
from sinuflow.flows.categorical import CategoricalMADE
from sinuflow.flows.mixed import MixedFlow
from sinuflow.flows.storage import read_model, write_model
from tests.hostile.bounds import costs_of


def mixed_flow(sizes=(2, 3), context=0, hidden=(4,)) -> MixedFlow:
    categories = CategoricalMADE(sizes, hidden, context)
    return MixedFlow(categories, SinusoidalFlow(2, context + categories.width, "full", blocks=1, hidden=(4,)))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "m"
    mixed_flow().save(path)
    return read_model(path)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [5 * 10**7]},
        {"sizes": [-(5 * 10**7)]},
        {"sizes": [2, -3]},
        {"sizes": [10**7, 5 - 10**7]},
        {"sizes": [1] * 300_000},
        {"sizes": [1] * 9000, "hidden": [1] * 9000},
        {"sizes": [9900], "hidden": [9900]},
        {"hidden": [9900, 9900]},
        {"hidden": []},
        {"sizes": list(range(1024))},
        {"sizes": list(range(1, 1025))},
        {"sizes": []},
        {"sizes": "23"},
        {"sizes": ["2", "3"]},
        {"sizes": [2.0, 3.0]},
        {"sizes": [True] * 5},
        {"sizes": [None]},
        {"sizes": 5},
        {"sizes": {"mapping": {"a": 5}}},
        {"sizes": [[2, 3]]},
        {"sizes": {"class": "StandardNormal", "arguments": {"features": 2}}},
        {"context": 10**8},
        {"context": -5},
        {"activation": ["relu"]},
        {"dropout": float("nan")},
        {"width": 5},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_density_that_the_tensors_do_not_fit_takes_little_memory(change, stored, tmp_path):
    config = copy.deepcopy(stored.config)
    config["arguments"]["categories"]["arguments"].update(change)
    write_model(tmp_path / "m", stored._replace(config=config), 2)
    assert not costs_of(sinuflow.load, tmp_path / "m", StorageError)


def test_components_of_other_kinds_are_refused(stored, tmp_path):
    categories, flow = (stored.config["arguments"][name] for name in ("categories", "flow"))
    # The inner flow has the context that the outer one needs.
    conditional = mixed_flow(context=5).spec().to_json()
    for config in (
        categories,
        {"class": "MixedFlow", "arguments": {"categories": flow, "flow": flow}},
        {"class": "MixedFlow", "arguments": {"categories": categories, "flow": categories}},
        {"class": "MixedFlow", "arguments": {"categories": categories, "flow": conditional}},
        {"class": "MixedFlow", "arguments": {"categories": categories}},
        {"class": "Flow", "arguments": {"bijection": categories, "base": None}},
    ):
        write_model(tmp_path / "m", stored._replace(config=config), 2)
        assert not costs_of(sinuflow.load, tmp_path / "m", StorageError)


def test_tensors_of_the_density_must_fit_and_be_finite(stored, tmp_path):
    for name in sorted(name for name in stored.tensors if name.startswith("categories.")):
        tensor = stored.tensors[name]
        for wrong in (tensor.reshape(-1)[:1].clone(), torch.full_like(tensor, torch.nan), tensor.int()):
            write_model(tmp_path / "m", stored._replace(tensors={**stored.tensors, name: wrong}), 2)
            with pytest.raises(StorageError):
                sinuflow.load(tmp_path / "m")


@pytest.mark.parametrize(
    "make",
    [
        lambda: mixed_flow([250] * 40, hidden=(512, 512)),
        lambda: mixed_flow([2] * 3000, hidden=(16, 16)),
        lambda: mixed_flow([20_000], hidden=(8,)),
    ],
    ids=["wide", "many variables", "many values"],
)
def test_a_valid_file_loads_within_the_bounds(make, tmp_path):
    flow = make()
    flow.save(tmp_path / "m")  # refuses what could not be loaded
    del flow
    assert costs_of(sinuflow.load, tmp_path / "m", StorageError)
