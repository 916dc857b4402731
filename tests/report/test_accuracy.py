"""A round-trip error is judged by what it means for samples."""

from __future__ import annotations

import math

import pytest

from sinuflow.cli.report import write_report
from sinuflow.report.page import certificate
from tests.report.fake import content


@pytest.mark.parametrize("error", ["round_trip", "residual"])
@pytest.mark.parametrize(
    ("size", "label", "meaning"),
    [
        (3.14e-6, "Verified.", "samples follow the density that the model reports"),
        (1e-3, "Verified.", "samples follow the density that the model reports"),
        (
            1.01e-3,
            "Limited accuracy.",
            "off by 0.0011 standard deviations, which is noticeable with more than 1,000,000",
        ),
        (
            0.0079,
            "Limited accuracy.",
            "off by 0.0079 standard deviations, which is noticeable with more than 20,000",
        ),
        (0.0101, "Not verified.", "do not trust this model's samples"),
        (math.inf, "Not verified.", "do not trust this model's samples"),
        (math.nan, "Not verified.", "do not trust this model's samples"),
    ],
)
def test_either_error_is_judged_by_its_size(error, size, label, meaning):
    """An error of e standard deviations is the standard error of the mean of 1/e² samples."""
    given = content(10, **{"round_trip": 1e-7, "residual": 1e-7, error: size})
    judged = given.accuracy
    assert judged.label == label
    assert judged.good == (label == "Verified.")
    assert meaning in certificate(given)


def test_errors_are_rounded_up():
    sentence = certificate(content(10, round_trip=3.11e-6, residual=4.01e-7))
    assert "is 3.2·10⁻⁶ standard deviations in the prepared columns, and 4.1·10⁻⁷ in the noise" in sentence


@pytest.mark.parametrize("error", [3.1e-6, 0.0079])
def test_the_command_warns_of_a_large_error(error, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sinuflow.cli.report.collect", lambda model, data: content(10, round_trip=error))
    write_report(None, tmp_path / "table.csv", tmp_path / "r.html")
    said = capsys.readouterr().out
    assert f"round-trip error of 10 rows: at most {'4e-06' if error < 1e-3 else '0.008'}\n" in said
    assert ("warning: the inverse amplifies rounding errors" in said) == (error > 1e-3)
