"""Small images and models that train in seconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import sinuflow

#: A flow of two blocks, and a short training.
SMALL = {"blocks": 2, "scales": 2, "waves": 2, "channels": 8}
SHORT: dict[str, Any] = {"progress": False, "device": "cpu", "architecture": SMALL}


def gradients(count: int = 60, channels: int = 1, seed: int = 0) -> Tensor:
    """Images of 7x7 pixels with brightness increasing from left to right."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(20, 100, (count, 1, 1, 1), generator=generator)
    noise = torch.randint(10, (count, channels, 7, 7), generator=generator)
    return (start + 15 * torch.arange(7) + noise).to(torch.uint8)


def quick_model(images: Tensor, **options: Any) -> sinuflow.ImageModel:
    return sinuflow.fit_images(images, **{**SHORT, "steps": 3, **options})
