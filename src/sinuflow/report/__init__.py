"""An HTML report on the quality of a fitted density: one self-contained page."""

from .baselines import gaussian_log_density, kde_log_density
from .content import Anomaly, ColumnView, ReportContent, Score
from .page import render, write

__all__ = [
    "Anomaly",
    "ColumnView",
    "ReportContent",
    "Score",
    "gaussian_log_density",
    "kde_log_density",
    "render",
    "write",
]
