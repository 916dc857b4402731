"""``sinuflow fit --continue`` and ``--minutes``, as users run them."""

from __future__ import annotations

import re
import shlex
import sqlite3

import numpy as np
import pandas as pd
import pytest

import sinuflow
from tests.cli.test_commands import fails, interrupted, make_frame, succeeds

FIT = ("fit", "people.csv", "-o", "m.safetensors")
CONTINUE = (*FIT, "--continue")


@pytest.fixture
def folder(tmp_path):
    """A folder with a table and its model."""
    make_frame(1000).to_csv(tmp_path / "people.csv", index=False)
    succeeds(*FIT, "--context", "city", "--steps", 20, "-q", cwd=tmp_path)
    return tmp_path


def weights(path) -> list:
    return list(sinuflow.load(path).flow.state_dict().values())


def test_a_finished_model_is_trained_further_in_place(folder):
    before = sinuflow.load(folder / "m.safetensors")
    out = succeeds(*CONTINUE, "--steps", 40, "-q", cwd=folder)
    after = sinuflow.load(folder / "m.safetensors")
    assert "3 columns modelled, 1 as context; trained 60 steps" in out
    assert after.facts["validation_nll"] < before.facts["validation_nll"]
    assert sorted(path.name for path in folder.iterdir()) == ["m.safetensors", "people.csv"]


def test_what_cannot_be_continued_is_one_line(folder):
    old = (folder / "m.safetensors").read_bytes()
    make_frame(900).to_csv(folder / "others.csv", index=False)
    assert "900 rows instead of 1,000" in fails("fit", "others.csv", *CONTINUE[2:], cwd=folder)
    assert "there is no model new.safetensors to continue" in fails(
        *FIT[:3], "new.safetensors", "--continue", cwd=folder
    )
    for options in (("--context", "city"), ("--drop", "city"), ("--map", "height=log"), ("--missing", "drop"),
                    ("--conditioning", "shift"), ("--seed", 1)):  # fmt: skip
        assert f"{options[0]} is for a new model" in fails(*CONTINUE, *options, cwd=folder)
    np.save(folder / "images.npy", np.zeros((30, 4, 4), dtype=np.uint8))
    assert "--continue is for tables" in fails("fit", "images.npy", *CONTINUE[2:], cwd=folder)
    assert "minutes must be" in fails(*CONTINUE, "--minutes", 0, cwd=folder)
    assert "--force" in fails(*FIT, cwd=folder)
    assert (folder / "m.safetensors").read_bytes() == old


def test_an_interrupted_continuation_keeps_the_model_and_resumes(folder):
    model, run = folder / "m.safetensors", folder / "m.safetensors.run"
    start = model.read_bytes()
    arguments = [*CONTINUE, "--steps", "400"]
    assert "Resume it with the same command and --resume" in interrupted(*arguments, cwd=folder)
    assert model.read_bytes() == start
    assert "--resume" in fails(*arguments, cwd=folder)
    assert "another starting model" in fails(*FIT, "--context", "city", "--force", "--resume", cwd=folder)
    succeeds(*arguments, "--resume", cwd=folder)
    assert not run.exists()
    (folder / "w.safetensors").write_bytes(start)
    succeeds(*FIT[:3], "w.safetensors", *arguments[4:], cwd=folder)
    assert all(a.equal(b) for a, b in zip(weights(model), weights(folder / "w.safetensors"), strict=True))


def test_the_command_of_the_hint_can_be_pasted(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=2500)
    table = pd.DataFrame(
        {f"{name} 's": 5 * np.sin(x * (i + 1)) + random.normal(size=2500) / 9 for i, name in enumerate("abcd")}
    )
    with sqlite3.connect(tmp_path / "my shop.db") as database:
        table.to_sql("t", database, index=False)
    arguments = ("fit", "my shop.db", "--sql", "SELECT * FROM t", "-o", "my model.safetensors")
    out = succeeds(*arguments, "--steps", 120, "-q", cwd=tmp_path)
    command = re.search("still improving: train longer with (.*)", out)
    assert command is not None, out
    program, *pasted = shlex.split(command[1])
    assert (program, *pasted) == ("sinuflow", *arguments, "--continue", "--steps", "240")
    assert "trained 125 steps" in succeeds(*pasted[:-1], 5, "-q", cwd=tmp_path)


def test_training_ends_within_the_minutes(folder):
    """A time that suffices for a few steps only: the default number of steps would take far longer."""
    out = succeeds(*FIT, "--force", "--minutes", 0.01, "-q", cwd=folder)
    taken = int(re.search(r"trained ([\d,]+) steps", out)[1].replace(",", ""))
    assert 1 <= taken < 3000
    history = sinuflow.load(folder / "m.safetensors").history
    assert history[-1]["step"] == taken
    assert history[-1]["seconds"] >= 0.01 * 60 / 5
