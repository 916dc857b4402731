from __future__ import annotations

import pytest
import torch

from sinuflow import fit
from sinuflow.compare import ZukoFlow

zuko = pytest.importorskip("zuko")


@pytest.mark.parametrize("name", ["MAF", "NSF"])
def test_it_is_zukos_flow(name: str) -> None:
    torch.manual_seed(0)
    ours = ZukoFlow(name, 3, transforms=2, hidden=(8,))
    torch.manual_seed(0)
    theirs = getattr(zuko.flows, name)(3, 0, transforms=2, hidden_features=(8,))
    x = torch.randn(5, 3)
    torch.testing.assert_close(ours().log_prob(x), theirs().log_prob(x))


def test_it_learns_in_our_loop() -> None:
    torch.manual_seed(0)
    x = torch.randn(600, 2) * torch.tensor([0.1, 2.0])
    flow = ZukoFlow("MAF", 2, transforms=2, hidden=(16,))
    before = -float(flow().log_prob(x).detach().mean())
    result = fit(flow, x[:500], x[500:], steps=300, learning_rate=1e-2, ema=0.9, progress=False, device="cpu")
    entropy = 1 + float(torch.log(torch.tensor(2 * torch.pi * 0.2)))
    assert result.best_nll is not None
    assert result.best_nll < before - 0.5
    assert abs(result.best_nll - entropy) < 0.3
