"""Recipes, compared with the tables of the appendix."""

from __future__ import annotations

from importlib import resources

import pytest

from sinuflow import ArgumentError, SinusoidalFlow
from sinuflow.data.image_sets import IMAGE_SETS
from sinuflow.paper.recipes import recipes
from sinuflow.paper.training import PEERS

# LDU blocks, scales, K, hidden, dropout; steps, batch, rate, decay, weight decay.
APPENDIX = {
    "toy": (16, 4, 4, (100,), 0, 50_000, 128, 1e-3, None, 0),
    "power": (12, 4, 4, (256, 256), 0, 1_200_000, 512, 5e-4, "cosine", 0),
    "gas": (12, 4, 4, (256, 256), 0, 2_000_000, 128, 1e-3, 0.99, 1e-5),
    "hepmass": (12, 4, 4, (512, 512), 0, 1_000_000, 128, 1e-3, 0.99, 5e-4),
    "miniboone": (12, 4, 4, (256, 256), 0.3, 125_000, 128, 5e-4, "cosine", 1e-3),
    "bsds300": (12, 4, 4, (512, 512), 0.1, 400_000, 512, 5e-4, "cosine", 0),
}
# LDU blocks, scales, K, feature maps, residual blocks; steps, batch, optimiser, rate, schedule, weight decay.
IMAGES = {
    "mnist": (12, 4, 4, 16, 2, 200_000, 128, "adam", 1e-3, "cosine", 1e-2),
    "cifar10": (12, 4, 4, 16, 2, 140_000, 128, "adamw", 5e-4, {"factor": 0.9, "patience": 2}, 1e-1),
}
FILES = sorted(f.name[:-5] for f in resources.files("sinuflow.paper.recipes").iterdir() if f.name.endswith(".toml"))


@pytest.mark.parametrize("name", APPENDIX)
def test_the_papers_recipes(name: str) -> None:
    flow, training = recipes(name)["paper"].flow, recipes(name)["paper"].training
    decay = training.get("decay", {"cosine": "cosine", "constant": None}.get(training["schedule"]))
    assert (
        flow["blocks"], flow["scales"], flow["waves"], flow["hidden"], flow["dropout"], training["steps"],
        training["batch_size"], training["learning_rate"], decay, training["weight_decay"],
    ) == APPENDIX[name]  # fmt: skip
    assert flow["conditioning"] == "shift"
    assert training["optimizer"] == "adam"  # its weight decay is the coupled one


@pytest.mark.parametrize("name", IMAGES)
def test_the_papers_image_recipes(name: str) -> None:
    flow, training = recipes(name)["paper"].flow, recipes(name)["paper"].training
    named = ("steps", "batch_size", "optimizer", "learning_rate", "schedule", "weight_decay")
    assert (
        *(flow[part] for part in ("blocks", "scales", "waves", "channels", "residual_blocks")),
        *(training[part] for part in named),
    ) == IMAGES[name]
    assert recipes(name)["today"].flow == flow
    if training["schedule"] != "cosine":  # its patience counts validations, the paper's epochs
        assert training["validate_every"] == IMAGE_SETS[name].sizes[0] // training["batch_size"]


@pytest.mark.parametrize("name", [name for name in APPENDIX if "today" in recipes(name)])
def test_todays_recipes_have_the_papers_architecture(name: str) -> None:
    known = recipes(name)
    assert {"dropout": 0.0} | known["today"].flow == known["paper"].flow


@pytest.mark.parametrize("name", FILES)
def test_every_recipe_can_be_built(name: str) -> None:
    for model, recipe in recipes(name).items():
        if name in IMAGE_SETS:
            SinusoidalFlow.image((1, 4, 4), **recipe.flow)
        elif model not in PEERS:
            SinusoidalFlow(3, **recipe.flow)


@pytest.mark.parametrize("name", ["gas-small", "hepmass-small", "miniboone-small"])
def test_peers_have_the_training_settings_of_best(name: str) -> None:
    known = recipes(name)
    for peer in PEERS:
        assert known[peer].training == known["best"].training
        assert known[peer].flow == {"transforms": 5, "hidden": (256, 256)}


def test_an_unknown_dataset_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"no recipes for 'moon', only for .*power"):
        recipes("moon")
