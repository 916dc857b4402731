"""The report's figures, each a string of inline SVG that takes its colours from the page."""

from .columns import histogram
from .noise import correlation_map, quantile_plot
from .pairs import pair_plot
from .scale import Scale, scale_of
from .training import learning_rate_curve, training_curve

__all__ = [
    "Scale",
    "correlation_map",
    "histogram",
    "learning_rate_curve",
    "pair_plot",
    "quantile_plot",
    "scale_of",
    "training_curve",
]
