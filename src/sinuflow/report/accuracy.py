"""How large a round-trip error is, and what an error of that size means for samples."""

from __future__ import annotations

from dataclasses import dataclass

from .content import ReportContent
from .wording import at_most, small

#: The largest errors that are negligible, and that are tolerable, in standard deviations. The mean of n samples has a
#: standard error of 1/√n standard deviations: these errors stay below it up to a million, and ten thousand samples.
NEGLIGIBLE, TOLERABLE = 1e-3, 1e-2


@dataclass(frozen=True)
class Accuracy:
    """A judgement of the inverse: a label, whether the error is negligible, and what follows for samples."""

    label: str
    good: bool
    meaning: str


def accuracy(content: ReportContent) -> Accuracy:
    """Judge the larger of the error of the values and that of the noise; NaN is as bad as infinity."""
    if content.inverted == 0:
        return Accuracy("Not verified.", False, "nothing is certified here")
    errors = (content.round_trip, content.residual)
    if all(error <= NEGLIGIBLE for error in errors):
        return Accuracy("Verified.", True, "samples follow the density that the model reports")
    if all(error <= TOLERABLE for error in errors):
        error = max(errors)
        return Accuracy(
            "Limited accuracy.",
            False,
            "the inverse amplifies rounding errors: means and quantiles of samples can be off by "
            f"{small(at_most(error, 2))} standard deviations, which shows in more than {_samples(error):,} samples. "
            "sinuflow sample --certify certifies every draw, or reports that it cannot",
        )
    return Accuracy(
        "Not verified.",
        False,
        "the inverse amplifies rounding errors too much: do not trust this model's samples, except for those drawn by "
        "sinuflow sample --certify",
    )


def _samples(error: float) -> int:
    """How many samples have a mean whose standard error is as large, to one digit."""
    return int(float(f"{error**-2:.0e}"))
