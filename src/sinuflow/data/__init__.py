"""Tables, images, training sources and benchmark datasets."""

from .columns import Column
from .datasets import BENCHMARKS, Benchmark, Splits, load_benchmark
from .preprocessing import Preprocessor
from .survey import Survey, survey
from .tables import Table, open_table

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Column",
    "Preprocessor",
    "Splits",
    "Survey",
    "Table",
    "load_benchmark",
    "open_table",
    "survey",
]
