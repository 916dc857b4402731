"""Fit a two-dimensional density that is known in closed form, and compare.

The data are two spirals. A Sinusoidal Flow is fitted to samples by maximum likelihood, with a PyTorch training loop.
The script prints the held-out negative log-likelihood and the Kullback-Leibler divergence from the true density,
inverts the flow with a certificate, times sampling and scoring, and plots the true density, the learned density, and
samples.

    python examples/toy_density.py --output demo.png
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sinuflow import SinusoidalFlow

#: The plots show the square from -LIMIT to LIMIT.
LIMIT = 3.3


class Spirals:
    """Two spirals: a uniform mixture of narrow normal distributions with means on two arms."""

    def __init__(
        self, centres_per_arm: int = 256, turns: float = 1.6, radius: float = 3.1, width: float = 0.12
    ) -> None:
        # Square roots space the centres evenly along the arms, so that the density is uniform along them.
        part = torch.linspace(0.04, 1, centres_per_arm).sqrt()
        angle = 2 * math.pi * turns * part
        arm = radius * part.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)
        self.centres = torch.cat([arm, -arm])
        self.width = width

    def sample(self, count: int) -> Tensor:
        """Samples of shape (count, 2)."""
        centres = self.centres[torch.randint(len(self.centres), (count,))]
        return centres + self.width * torch.randn(count, 2)

    def log_prob(self, x: Tensor) -> Tensor:
        """The exact log density at ``x`` of shape (count, 2)."""
        square = torch.cdist(x, self.centres, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        normaliser = math.log(len(self.centres) * 2 * math.pi * self.width**2)
        return torch.logsumexp(-square / (2 * self.width**2), dim=-1) - normaliser


def fit(flow: SinusoidalFlow, truth: Spirals, steps: int, batch: int = 512, learning_rate: float = 7e-3) -> None:
    """Maximum likelihood with Adam and cosine annealing to zero."""
    optimizer = torch.optim.Adam(flow.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    average = 0.0  # of the last losses
    start = time.perf_counter()
    for step in range(1, steps + 1):
        loss = -flow().log_prob(truth.sample(batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        average += (loss.item() - average) / min(step, 50)
        show_progress(step, steps, average, time.perf_counter() - start)


def show_progress(step: int, steps: int, loss: float, seconds: float) -> None:
    """One line that updates in a terminal; elsewhere, a line every 400 steps."""
    live = sys.stdout.isatty()
    if step == steps or step % (20 if live else 400) == 0:
        end = "\r" if live and step < steps else "\n"
        print(f"step {step:>5} of {steps}   training NLL {loss:.3f}   {seconds:5.1f} s", end=end, flush=True)


def seconds_for(job: Callable[[], object], rounds: int = 5) -> float:
    """The shortest time of several calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


@torch.no_grad()
def evaluate(flow: SinusoidalFlow, truth: Spirals, count: int = 20_000) -> None:
    """Print the accuracy of the density and of the inverse, and the time of scoring and sampling."""
    x = truth.sample(count)
    exact, learned = truth.log_prob(x), flow().log_prob(x)
    gap = exact - learned
    print(f"held-out NLL {-learned.mean():.4f} nats (true density: {-exact.mean():.4f})")
    print(f"KL divergence from the true density {gap.mean():.4f} ± {gap.std() / math.sqrt(count):.4f} nats")

    z, _ = flow.bijection(x)
    inverse = flow.invert(z, on_failure="return")
    print(
        f"inverse of {count:,} points: {int(inverse.converged.sum()):,} certified, "
        f"largest residual {inverse.residual.max():.1e} in float32"
    )
    rows = x[:4096]
    score = seconds_for(lambda: flow().log_prob(rows))
    draw = seconds_for(lambda: flow().sample((len(rows),)))
    print(f"{len(rows):,} points: scored in {1e3 * score:.0f} ms, sampled in {1e3 * draw:.0f} ms")


@torch.no_grad()
def plot(flow: SinusoidalFlow, truth: Spirals, path: Path, pixels: int = 400, count: int = 10_000) -> None:
    """Plot the true density, the learned density and samples, on one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Pixel centres, so that the image and the samples align.
    line = (torch.arange(pixels) + 0.5) * (2 * LIMIT / pixels) - LIMIT
    points = torch.cartesian_prod(line, line).flip(-1)
    exact = truth.log_prob(points).exp().view(pixels, pixels)
    learned = flow().log_prob(points).exp().view(pixels, pixels)
    samples = flow().sample((count,))
    largest = float(exact.max())

    colors = matplotlib.colormaps["magma"]
    ink = "#f4efe6"
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.35), facecolor=colors(0))
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.9, wspace=0.02)
    for axis, title in zip(axes, ["True density", "Learned density", f"{count:,} samples"], strict=True):
        axis.set(xlim=(-LIMIT, LIMIT), ylim=(-LIMIT, LIMIT), aspect="equal", facecolor=colors(0), xticks=[], yticks=[])
        axis.set_title(title, color=ink, fontsize=15)
        axis.spines[:].set_visible(False)
    for axis, density in zip(axes, [exact, learned], strict=False):
        axis.imshow(
            density,
            origin="lower",
            extent=(-LIMIT, LIMIT, -LIMIT, LIMIT),
            cmap=colors,
            vmin=0,
            vmax=largest,
            interpolation="bilinear",
        )
    # Coloured by the learned density; the negative vmin keeps the rarest samples visible.
    shade = flow().log_prob(samples).exp()
    axes[2].scatter(*samples.T, c=shade, s=2.2, linewidths=0, cmap=colors, vmin=-0.5 * largest, vmax=largest)
    figure.savefig(path, format="png", dpi=140, facecolor=figure.get_facecolor())
    plt.close(figure)


def positive(text: str) -> int:
    """A positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def main() -> None:
    """Fit, evaluate and plot."""
    parser = argparse.ArgumentParser(description="Fit two spirals and plot the learned density.")
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="the plot (default: demo.png)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--steps", type=positive, default=2500, help="training steps (default: 2500)")
    arguments = parser.parse_args()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit("plotting needs matplotlib: pip install matplotlib")
    try:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.touch()  # fail before the training
    except OSError as error:
        sys.exit(f"cannot write {arguments.output}: {error.strerror}")

    torch.set_num_threads(1)  # faster than several for a network of this size
    torch.manual_seed(arguments.seed)
    truth = Spirals()
    flow = SinusoidalFlow(features=2, conditioning="full", hidden=(64, 64))
    fit(flow, truth, arguments.steps)
    evaluate(flow, truth)
    plot(flow, truth, arguments.output)
    print(f"plot: {arguments.output}")


if __name__ == "__main__":
    main()
