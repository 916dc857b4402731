"""The optimizer of the eager engine, compared with PyTorch's."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sinuflow.training.engine import Adam


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_steps_equal_those_of_torch_optim(decoupled, weight_decay):
    """Bit for bit, for parameters of several dtypes, one of them without a gradient at first."""
    results = []
    for own in (True, False):
        torch.manual_seed(0)
        dtypes = (torch.float32, torch.float64, torch.float32)
        parameters = [torch.nn.Parameter(torch.randn(n, 3, dtype=dtype)) for n, dtype in enumerate(dtypes, 1)]
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        reference = kind(parameters, weight_decay=weight_decay, fused=True)
        adam = Adam(parameters, weight_decay, decoupled)
        for step in range(5):
            for i, parameter in enumerate(parameters):
                parameter.grad = torch.randn_like(parameter) if i or step > 2 else None
            reference.param_groups[0]["lr"] = 0.1 / (step + 1)
            adam.step(0.1 / (step + 1)) if own else reference.step()
        state = {f"{i}/{name}": t for i, p in enumerate(parameters) for name, t in reference.state[p].items()}
        results.append((parameters, adam.state if own else state))
    (own_parameters, own_state), (parameters, state) = results
    assert all(torch.equal(a, b) for a, b in zip(own_parameters, parameters, strict=True))
    assert own_state.keys() == state.keys()
    assert all(torch.equal(own_state[name], t) for name, t in state.items())


def test_training_does_not_import_the_compiler():
    """``torch.optim`` would import ``torch._dynamo``, which takes most of a second."""
    code = (
        "import sys, torch, sinuflow\n"
        "flow = sinuflow.SinusoidalFlow(2, blocks=1, hidden=(4,))\n"
        "sinuflow.fit(flow, torch.randn(20, 2), torch.randn(20, 2), steps=2, progress=False, device='cpu')\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
