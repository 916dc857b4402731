"""Hyperparameters: what is stored, and the size of a flow that is bounded without building it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinuflow
from sinuflow import SinusoidalFlow, StorageError
from sinuflow.flows.storage import Model, _needed, check_size, write_model
from tests.hostile.bounds import MEBIBYTE, measured

vectors = st.fixed_dictionaries(
    {
        "features": st.integers(1, 5),
        "context": st.integers(0, 3),
        "conditioning": st.sampled_from(["shift", "full", "none"]),
        "blocks": st.integers(1, 3),
        "scales": st.integers(1, 3),
        "waves": st.integers(1, 3),
        "hidden": st.one_of(st.lists(st.integers(1, 9), max_size=3), st.just([6, 6, 6])),
        "residual": st.booleans(),
    }
).filter(lambda config: not config["residual"] or len(set(config["hidden"])) <= 1)

images = st.fixed_dictionaries(
    {
        "image": st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)).map(list),
        "context": st.integers(0, 3),
        "blocks": st.integers(1, 2),
        "scales": st.integers(1, 3),
        "waves": st.integers(1, 3),
        "channels": st.integers(3, 6),
        "residual_blocks": st.integers(0, 2),
        "conditioning": st.sampled_from(["shift", "affine"]),
    }
)


@settings(max_examples=60)
@given(config=st.one_of(vectors, images))
def test_the_size_of_a_flow_is_bounded_without_building_it(config):
    with torch.device("meta"):
        flow = SinusoidalFlow.from_config(config)
    assert SinusoidalFlow.from_config(flow.config).config == flow.config
    tensors = flow.state_dict()
    assert _needed(flow.spec()) <= 2 * sum(t.numel() for t in tensors.values())
    check_size(flow.bijection.spec(), tensors)


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"features": 9_000, "waves": 9_000},
        {"features": 9_000, "scales": 3_000},
        {"scales": 1_000, "waves": 1_000, "hidden": [1_000, 1_000]},
        {"features": 9_900, "hidden": [5_000]},
        {"context": 9_900, "hidden": [5_000]},
        {"hidden": [90_000, 90_000]},
        {"hidden": [1] * 10_000},
    ],
    ids=str,
)
def test_a_small_file_of_a_large_flow_is_refused_at_no_cost(change, composed, tmp_path):
    flow = SinusoidalFlow(2, conditioning="full", blocks=1, hidden=(4,))
    config = {**flow.config, **change}
    if composed:
        layer = flow.bijection.bijections[0].spec().to_json()
        layer["arguments"] |= change
        config = {"class": "Flow", "arguments": {"bijection": layer, "base": None}}
    write_model(tmp_path / "m", Model("flow", config, flow.state_dict()))
    with measured() as cost, pytest.raises(StorageError, match="far too few parameters"):
        sinuflow.load(tmp_path / "m")
    assert cost.peak < 64 * MEBIBYTE
