"""The command line as users run it: in a process of its own."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

import sinuflow
from tests.cli.commands import SCRIPT
from tests.processes import python, unmeasured

PLAIN = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
ENVIRONMENT = {**os.environ, **PLAIN}


def sinuflow_command(
    *arguments: object, cwd: Path, fresh: bool = False, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: a fork for speed, a fresh interpreter if wanted or for `options`."""
    if not (fresh or options):
        return python(SCRIPT, *arguments, cwd=cwd, env=ENVIRONMENT)
    command = [sys.executable, "-m", "sinuflow", *map(str, arguments)]
    options = {"env": ENVIRONMENT, "capture_output": True, "text": True, "check": False, **options}
    return subprocess.run(command, cwd=cwd, **options)


def succeeds(*arguments: object, cwd: Path, **options: object) -> str:
    result = sinuflow_command(*arguments, cwd=cwd, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def fails(*arguments: object, cwd: Path, code: int = 1, **options: object) -> str:
    before = sorted(p.name for p in cwd.rglob("*"))
    result = sinuflow_command(*arguments, cwd=cwd, **options)
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert sorted(p.name for p in cwd.rglob("*")) == before, "something was left behind"
    return result.stderr


def interrupted(*arguments: str, cwd: Path) -> str:
    """The error output of a training command that is sent SIGINT after three lines of history."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sinuflow", *arguments], cwd=cwd, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    history = cwd / "m.safetensors.run" / "history.jsonl"
    while not (history.exists() and len(history.read_text().splitlines()) >= 3):
        assert process.poll() is None, process.stderr.read()
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    return error


def make_frame(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    height = random.normal(170, 10, rows)
    return pd.DataFrame(
        {
            "height": height,
            "weight": np.round(0.9 * height - 90 + random.normal(0, 8, rows), 1),
            "children": random.poisson(1.4, rows),
            "city": random.choice(["Oslo", "Lima"], rows),
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a table, and a model that the command line made of it."""
    folder = tmp_path_factory.mktemp("cli")
    make_frame().to_csv(folder / "people.csv", index=False)
    make_frame().to_parquet(folder / "people.parquet")
    fit = ("fit", "people.csv", "-o", "m.safetensors", "--context", "city", "--steps", 80)
    out = succeeds(*fit, cwd=folder, fresh=True)
    assert "300 rows, 3 columns modelled, 1 as context" in out
    return folder


def test_fit_leaves_a_model_and_nothing_else(place):
    model = sinuflow.load(place / "m.safetensors")
    assert isinstance(model, sinuflow.TableModel)
    assert not (place / "m.safetensors.run").exists()


def test_score_keeps_the_order_and_adds_two_columns(place, tmp_path):
    for output in ("s.csv", "s.parquet"):
        succeeds("score", place / "m.safetensors", place / "people.parquet", "-o", tmp_path / output, cwd=tmp_path)
    scored, same = pd.read_csv(tmp_path / "s.csv"), pd.read_parquet(tmp_path / "s.parquet")
    assert list(scored.columns) == [*make_frame().columns, "log_density", "anomaly_percentile"]
    np.testing.assert_allclose(scored["height"], make_frame()["height"])
    model = sinuflow.load(place / "m.safetensors")
    np.testing.assert_allclose(same["log_density"], model.log_prob(make_frame()), rtol=1e-12)
    np.testing.assert_allclose(same["log_density"], scored["log_density"], rtol=1e-12)
    assert same["anomaly_percentile"].between(0, 100).all()
    succeeds("score", place / "m.safetensors", place / "people.csv", "-o", tmp_path / "t.parquet", cwd=tmp_path)
    texts = pd.read_parquet(tmp_path / "t.parquet").drop(columns=["log_density", "anomaly_percentile"])
    assert texts.equals(pd.read_csv(place / "people.csv", dtype="str"))


def test_sample_is_repeatable_and_conditional(place, tmp_path):
    arguments = ("sample", place / "m.safetensors", "-n", 50, "--given", "city=Lima", "--seed", 3)
    assert "certified" not in succeeds(*arguments, "-o", tmp_path / "a.csv", cwd=tmp_path)
    out = succeeds(*arguments, "--certify", "-o", tmp_path / "b.csv", cwd=tmp_path)
    assert re.search(r"^certified end to end: residual at most \de-0[5-7] standard deviations of the noise$", out, re.M)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    drawn = pd.read_csv(tmp_path / "a.csv")
    assert len(drawn) == 50
    assert set(drawn["city"]) == {"Lima"}
    assert drawn["children"].dtype == np.int64


def test_report_is_one_page(place, tmp_path):
    out = succeeds("report", place / "m.safetensors", place / "people.csv", "-o", tmp_path / "r.html", cwd=tmp_path)
    assert "test NLL" in out
    page = (tmp_path / "r.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "weight" in page


def test_info_says_what_a_file_holds(place, tmp_path):
    out = succeeds("info", place / "m.safetensors", cwd=tmp_path)
    assert "people.csv" in out
    assert re.search(r"^  weight    step 0\.1, .*standardised$", out, re.M)
    assert re.search(r"^  children  step 1, \d values$", out, re.M)
    assert re.search(r"^  city      context, 2 categories$", out, re.M)
    assert "cpu:" in succeeds("info", "--devices", cwd=tmp_path)
    sinuflow.SinusoidalFlow(3, blocks=1, hidden=(4,)).save(tmp_path / "f.safetensors")
    assert "3 features" in succeeds("info", tmp_path / "f.safetensors", cwd=tmp_path)
    sinuflow.Flow(sinuflow.bijections.ElementwiseAffine(2)).save(tmp_path / "f.safetensors")
    info = succeeds("info", tmp_path / "f.safetensors", cwd=tmp_path)
    assert "flow: 4 parameters; Flow(bijection=ElementwiseAffine(features=2), base=None)" in info


def test_kernels_that_cannot_be_used_are_one_line(place, tmp_path):
    for changes, lines in (({"CXX": "/bin/false"}, 1), ({"SINUFLOW_KERNELS": "plain"}, 0)):
        environment = {**ENVIRONMENT, "SINUFLOW_CACHE": str(tmp_path / "cache"), **changes}
        done = python(SCRIPT, "score", place / "m.safetensors", place / "people.csv", "-o", f"{lines}.csv",
                      cwd=tmp_path, env=environment)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("\n") == lines, done.stderr
        warning = "warning: the reference implementation is used on the CPU, which is slower: /bin/false"
        assert done.stderr.startswith(warning * lines)
    assert (tmp_path / "0.csv").read_bytes()


def test_help_and_version_work(tmp_path):
    assert sinuflow.__version__ in succeeds("--version", cwd=tmp_path, fresh=True)
    for command in ("", "fit", "score", "sample", "report", "info"):
        assert "Usage" in succeeds(*command.split(), "--help", cwd=tmp_path)


def test_wrong_usage_has_exit_code_2(tmp_path):
    fails("fit", cwd=tmp_path, code=2)
    fails("fit", "x.csv", "-o", "m", "--conditioning", "quantum", cwd=tmp_path, code=2)
    fails("unknown", cwd=tmp_path, code=2)


# ---------------------------------------------------------------- mistakes of users

TWENTY = "".join(f"{i},{i % 7}\n" for i in range(20))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n", "1 usable row:"),
        (b"a,b\n" + b"caf\xe9,2\n" * 20, "UTF-8"),
        (("a,b\n" + TWENTY + "1,2,3\n").encode(), "Expected 2 columns"),
        (("a,a\n" + TWENTY).encode(), "more than one column"),
    ],
    ids=["empty", "header only", "one row", "not UTF-8", "ragged", "duplicates"],
)
def test_a_bad_table_is_refused_by_fit(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    assert message in fails("fit", "t.csv", "-o", "m.safetensors", cwd=tmp_path)


def test_all_problems_of_a_table_are_refused_at_once(tmp_path):
    make_frame().assign(**{"my id": [f"t{i}" for i in range(300)]}).to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", "t.csv", "-o", "m.safetensors", "--context", "my id", "--map", "city=log", "--steps", 2, "-q")
    result = sinuflow_command(*fit, cwd=tmp_path)
    assert result.returncode == 1
    *lines, remedy = result.stderr.splitlines()
    assert lines == [
        "error: t.csv: 2 columns cannot be used:",
        "  column 'my id' cannot be used: identifiers or free text, 300 different ones in 300 rows",
        "  column 'city' holds categories, and cannot take the map 'log'",
    ]
    options = remedy.removeprefix("run again with ").partition(" (Python: ")[0]
    assert options == "--map 'my id=auto' --map city=auto"
    succeeds(*fit, *shlex.split(options), cwd=tmp_path)


def test_columns_may_be_in_another_order_but_not_missing(place, tmp_path):
    make_frame()[["city", "children", "weight", "height"]].to_csv(tmp_path / "o.csv", index=False)
    succeeds("score", place / "m.safetensors", "o.csv", "-o", "s.csv", cwd=tmp_path)
    make_frame().drop(columns="weight").to_csv(tmp_path / "less.csv", index=False)
    message = fails("score", place / "m.safetensors", "less.csv", "-o", "s2.csv", cwd=tmp_path)
    assert "lacks the column 'weight'" in message


def test_missing_values_are_counted_and_can_be_left_out(place, tmp_path):
    frame = make_frame()
    frame.loc[[3, 8], "height"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    refuse = ("--missing", "refuse")
    assert "2 in 'height'" in fails("fit", "t.csv", "-o", "m.safetensors", *refuse, cwd=tmp_path)
    succeeds("fit", "t.csv", "-o", "m.safetensors", "--missing", "drop", "--steps", 5, "-q", cwd=tmp_path)
    assert "row 4" in fails("score", place / "m.safetensors", "t.csv", "-o", "s.csv", *refuse, cwd=tmp_path)
    succeeds("score", place / "m.safetensors", "t.csv", "-o", "s.csv", "--missing", "drop", cwd=tmp_path)
    scored = pd.read_csv(tmp_path / "s.csv")
    assert scored["log_density"].isna().to_numpy().nonzero()[0].tolist() == [3, 8]


def test_an_empty_table_does_not_replace_an_output(place, tmp_path):
    (tmp_path / "h.csv").write_text("height,weight,children,city\n")
    (tmp_path / "s.csv").write_text("precious")
    arguments = ("score", place / "m.safetensors", "h.csv", "-o", "s.csv", "--force")
    assert "no rows" in fails(*arguments, cwd=tmp_path)
    assert (tmp_path / "s.csv").read_text() == "precious"


def test_one_file_cannot_be_two_things(place, tmp_path):
    make_frame().to_csv(tmp_path / "t.csv", index=False)
    assert "different files" in fails("fit", "t.csv", "-o", "t.csv", "--force", cwd=tmp_path)
    assert "different files" in fails("fit", "t.csv", "-o", "r.html", "--report", "r.html", cwd=tmp_path)
    fails("fit", "t.csv", "-o", "m.safetensors", "--seed", "-1", cwd=tmp_path, code=2)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_identifiers_are_set_aside_by_fit_and_pass_through_score(place, tmp_path, kind):
    frame = make_frame().assign(country="NA", zip=[f"{i:05d}" for i in range(300)], id=10**18 + 5 + np.arange(300))
    data = tmp_path / f"t.{kind}"
    frame.to_csv(data, index=False) if kind == "csv" else frame.to_parquet(data)
    drop = ("--drop", "zip", "--drop", "country", "--steps", 1, "-q")
    out = succeeds("fit", data, "-o", "m.safetensors", *drop, cwd=tmp_path)
    assert "300 rows, 4 columns modelled, 1 set aside" in out
    assert "column 'id' is set aside: holds the integer 1000000000000000005 in row 1" in out
    assert "to model it, fit with --map id=category" in out
    succeeds("score", place / "m.safetensors", data, "-o", tmp_path / f"s.{kind}", cwd=tmp_path)
    if kind == "csv":
        lines = [line.rsplit(",", 2)[0] for line in (tmp_path / "s.csv").read_text().splitlines()]
        assert lines == data.read_text().splitlines()
    else:
        scored = pyarrow.parquet.read_table(tmp_path / "s.parquet")
        assert scored.select(list(frame.columns)).equals(pyarrow.parquet.read_table(data), check_metadata=True)


def test_booleans_and_odd_names_can_be_given(tmp_path):
    frame = make_frame().assign(**{"a=b": np.arange(300) % 2 == 0})
    frame.to_parquet(tmp_path / "t.parquet")
    succeeds("fit", "t.parquet", "-o", "m.safetensors", "--context", "a=b", "--steps", 5, "-q", cwd=tmp_path)
    succeeds("sample", "m.safetensors", "-n", 3, "--given", "a=b=true", "-o", "s.parquet", cwd=tmp_path)
    assert pd.read_parquet(tmp_path / "s.parquet")["a=b"].tolist() == [True] * 3
    frame.to_csv(tmp_path / "t.csv", index=False)  # there it is a text
    succeeds("score", "m.safetensors", "t.csv", "-o", "s.csv", cwd=tmp_path)
    twice = ("--given", "a=b=true", "--given", "a=b=false")
    assert "twice" in fails("sample", "m.safetensors", "-n", 3, *twice, "-o", "x.csv", cwd=tmp_path)


def test_outputs_are_replaced_only_by_force(place, tmp_path):
    (tmp_path / "s.csv").write_text("precious")
    arguments = ("score", place / "m.safetensors", place / "people.csv", "-o", "s.csv")
    assert "--force" in fails(*arguments, cwd=tmp_path)
    assert (tmp_path / "s.csv").read_text() == "precious"
    succeeds(*arguments, "--force", cwd=tmp_path)
    assert "there is no folder" in fails(*arguments[:-1], "no/where.csv", cwd=tmp_path)
    assert "must end in .csv or .parquet" in fails(*arguments[:-1], "s.xlsx", cwd=tmp_path)


def test_a_full_disk_leaves_the_old_file_whole(place, tmp_path):
    frame = pd.concat([make_frame()] * 30)
    frame.to_parquet(tmp_path / "big.parquet")
    (tmp_path / "s.csv").write_text("precious")

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    # Kernels would be warned of: they do not fit into files so small.
    limited = {"cwd": tmp_path, "preexec_fn": small_files_only, "env": unmeasured(**PLAIN, SINUFLOW_KERNELS="plain")}
    arguments = ("score", place / "m.safetensors", "big.parquet", "-o", "s.csv", "--force")
    assert "cannot write s.csv" in fails(*arguments, **limited)
    assert (tmp_path / "s.csv").read_text() == "precious"
    message = fails("fit", place / "people.csv", "-o", "m.safetensors", "--steps", 3, "-q", **limited)
    assert "cannot write" in message


def test_files_that_are_no_models_are_refused(place, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    for command in (("score", "x.safetensors", place / "people.csv", "-o", "s.csv"), ("info", "x.safetensors")):
        assert "not a safetensors file" in fails(*command, cwd=tmp_path)
    sinuflow.SinusoidalFlow(3, blocks=1, hidden=(4,)).save(tmp_path / "f.safetensors")
    assert "bare flow" in fails("sample", "f.safetensors", "-n", 3, "-o", "s.csv", cwd=tmp_path)


def test_other_mistakes_are_explained(place, tmp_path):
    assert "there is no" in fails("fit", "nowhere.csv", "-o", "m.safetensors", cwd=tmp_path)
    people = place / "people.csv"
    assert "no column 'town'" in fails("fit", people, "-o", "m.safetensors", "--drop", "town", cwd=tmp_path)
    assert "COLUMN=MAP" in fails("fit", people, "-o", "m.safetensors", "--map", "height", cwd=tmp_path)
    model = place / "m.safetensors"
    assert "give a value for 'city'" in fails("sample", model, "-n", 3, "-o", "s.csv", cwd=tmp_path)
    assert "COLUMN=VALUE" in fails("sample", model, "-n", 3, "--given", "Oslo", "-o", "s.csv", cwd=tmp_path)
    assert "--devices" in fails("info", cwd=tmp_path)


def test_debug_shows_the_traceback(tmp_path):
    result = sinuflow_command("fit", "nowhere.csv", "-o", "m.safetensors", "--debug", cwd=tmp_path, fresh=True)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


# ---------------------------------------------------------------- interruption


def test_a_run_interrupted_by_ctrl_c_resumes_to_the_same_model(tmp_path):
    make_frame(1000).to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", "t.csv", "--steps", "400"]
    run = tmp_path / "m.safetensors.run"
    error = interrupted(*arguments, "-o", "m.safetensors", cwd=tmp_path)
    assert "--resume" in error
    assert "Traceback" not in error
    assert not (tmp_path / "m.safetensors").exists()
    assert "--resume" in fails(*arguments, "-o", "m.safetensors", cwd=tmp_path)
    succeeds(*arguments, "-o", "m.safetensors", "--resume", cwd=tmp_path)
    succeeds(*arguments, "-o", "whole.safetensors", cwd=tmp_path)
    resumed, whole = (sinuflow.load(tmp_path / name) for name in ("m.safetensors", "whole.safetensors"))
    for a, b in zip(resumed.flow.state_dict().values(), whole.flow.state_dict().values(), strict=True):
        assert a.equal(b)
    assert not run.exists()


def test_a_parquet_folder_is_scored_in_order(place, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for i in range(3):
        make_frame(200, seed=i).to_parquet(folder / f"{i}.parquet")
    succeeds("score", place / "m.safetensors", folder, "-o", tmp_path / "s.parquet", cwd=tmp_path)
    scored = pyarrow.parquet.read_table(tmp_path / "s.parquet").to_pandas()
    whole = pd.concat([make_frame(200, seed=i) for i in range(3)])
    np.testing.assert_allclose(scored["height"], whole["height"])
