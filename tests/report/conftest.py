from __future__ import annotations

from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure

from tests.untraced import untraced


@pytest.fixture(scope="session", autouse=True)
def _matplotlib_draws_untraced() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", untraced()(Figure.savefig))
        yield
