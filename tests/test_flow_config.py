"""The size computed from hyperparameters is that of the flow that is built."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow import SinusoidalFlow
from sinuflow.flow_config import flow_config

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
def test_the_size_of_a_flow_is_known_without_building_it(config):
    with torch.device("meta"):
        flow = SinusoidalFlow.from_config(config)
    state = flow.state_dict().values()
    assert flow_config(flow.config).size == (sum(t.numel() for t in state), len(state))
    assert flow_config(flow.config).as_dict() == flow.config
