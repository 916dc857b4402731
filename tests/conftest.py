from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.processes import stop_servers

# Without a GPU, Triton's interpreter runs its kernels; it reads this variable when they are defined.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from tests.triton_interpreter import speed_up

        speed_up()
    except ImportError:  # no Triton, or an older one, whose interpreter differs
        collect_ignore = ["triton_interpreter.py"]

# Parameters that look trained are shared with the benchmarks.
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    # They depend on the compiler and the folders of the machine.
    config.addinivalue_line("filterwarnings", "ignore::sinuflow.errors.KernelWarning")
    # But kernels that are wrong or too large fail tests that do not expect it.
    config.addinivalue_line("filterwarnings", "error:.*(disagree with the reference|a fallback runs instead)")


@pytest.fixture(scope="session", autouse=True)
def _signals_are_not_ignored() -> None:
    # A shell starts background jobs with SIGINT ignored, and Sinuflow leaves ignored signals alone.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_tests() -> Iterator[None]:
    yield
    stop_servers()


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
