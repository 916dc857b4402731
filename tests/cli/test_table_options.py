"""Options for tables as they are: notices of a fit, bounds and complete rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.cli.test_commands import fails, make_frame, succeeds

FIT = ("-o", "m.safetensors", "--steps", 3, "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("table")
    frame = make_frame().assign(unit="cm", children2=lambda f: f["children"] + 2, share=np.linspace(0.2, 0.7, 300))
    frame = frame.assign(**{"the name": [f"n{i}" for i in range(300)]})
    frame["age"] = [str(20 + i % 60) if i % 10 else "unknown" for i in range(300)]
    frame.to_csv(path / "t.csv", index=False)
    return path


def test_a_fit_says_what_it_uses_and_why_not_the_rest(folder):
    out = succeeds("fit", "t.csv", *FIT, "--bounds", "share=0:1", "--bounds", "height=0:", cwd=folder)
    first, *others = out.splitlines()
    assert first.startswith("t.csv: 300 rows, 6 columns modelled, 1 restored, 1 constant, 1 set aside; trained 3 steps")
    assert others[:5] == [
        "restored from other columns: children2 = children + 2",
        "constant: unit = 'cm'",
        "column 'the name' is set aside: identifiers or free text, 300 different ones in 300 rows",
        "to model it, fit with --map 'the name=auto' (Python: maps={'the name': 'auto'})",
        "column 'age': 30 cells count as missing, being neither numbers nor times: 'unknown'",
    ]
    out = succeeds("info", "m.safetensors", cwd=folder)
    assert "column 'the name' is set aside" in out
    assert "at least 0, at most 1" in out
    drawn = ("sample", "m.safetensors", "-n", 200, "--seed", 0, "-o", "s.csv", "--force")
    succeeds(*drawn, cwd=folder)
    assert pd.read_csv(folder / "s.csv")["age"].isna().any()
    succeeds(*drawn, "--complete", cwd=folder)
    rows = pd.read_csv(folder / "s.csv")
    assert not rows.isna().to_numpy().any()
    assert rows["share"].between(0, 1).all()
    assert (rows["children2"] == rows["children"] + 2).all()


@pytest.mark.parametrize("bounds", ["share", "share=", "share=:", "share=0", "share=a:b", "=0:1"])
def test_bounds_must_be_numbers(folder, bounds):
    message = "no column ''" if bounds.startswith("=") else "--bounds takes COLUMN=LOW:HIGH"
    assert message in fails("fit", "t.csv", "-o", "n.safetensors", "--bounds", bounds, cwd=folder)


def test_options_of_tables_are_not_for_images(tmp_path):
    np.save(tmp_path / "i.npy", np.zeros((20, 1, 4, 4), dtype=np.uint8))
    assert "--bounds is for tables" in fails("fit", "i.npy", "-o", "m", "--bounds", "x=0:1", cwd=tmp_path)
