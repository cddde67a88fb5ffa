"""Fit three full-covariance and three diagonal components to the same data, and draw both.

This is the point of the report in one picture: with the same number of components a
full covariance follows what a diagonal one must cover. Both are fitted by gradient
descent on the exact negative log-likelihood, from the same start, and judged on data
that neither has seen.

    python examples/report_figure.py demo
"""

import argparse
import math
import os
import tempfile
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from condens import GaussianMixture
from condens.functional import nll, packed_size
from condens.plots import joint

COMPONENTS, DIMENSIONS = 3, 2


def draw_data(count: int, generator: torch.Generator) -> Tensor:
    """Draw points along three curved, correlated streaks [count, 2]."""
    along = torch.randn(count, generator=generator)
    across = 0.12 * torch.randn(count, generator=generator)
    streak = torch.randint(3, (count,), generator=generator)
    angle = torch.tensor([0.6, 2.1, -0.75])[streak]
    centre = torch.tensor([[-1.6, -0.6], [1.5, -0.8], [0.2, 1.7]])[streak]
    bent = across + 0.06 * (along.square() - 1)
    direction = torch.stack([angle.cos(), angle.sin()], -1)
    normal = torch.stack([-angle.sin(), angle.cos()], -1)
    return centre + along[:, None] * direction + bent[:, None] * normal


def fit(data: Tensor, covariance: str, steps: int = 1500) -> GaussianMixture:
    """Minimise the mean exact NLL of the data with Adam."""
    size = packed_size(DIMENSIONS) if covariance == "full" else DIMENSIONS
    logits = torch.zeros(COMPONENTS, requires_grad=True)
    # Means start on a small circle around the data's centre: distinct, and the same for both.
    turn = 2 * math.pi * torch.arange(COMPONENTS) / COMPONENTS
    spread = data.std(0) * torch.stack([turn.cos(), turn.sin()], -1)
    means = (data.mean(0) + spread).requires_grad_()
    factors = torch.zeros(COMPONENTS, size, requires_grad=True)
    optimiser = torch.optim.Adam([logits, means, factors], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        nll(data, logits, means, factors).mean().backward()
        optimiser.step()
        schedule.step()
    return GaussianMixture(logits.detach(), means.detach(), factors.detach())


def draw(axes: Axes, mixture: GaussianMixture, points: Tensor, title: str) -> None:
    """Draw the density, the components' one- and two-sigma ellipses, and the points."""
    joint(mixture, coverages=(), samples=points, limits=((-4.6, 4.6), (-4.0, 4.6)), axes=axes)
    axes.set(title=title, aspect="equal", xticks=[], yticks=[], xlabel="", ylabel="")


def save(figure: Figure, path: Path) -> None:
    """Write the picture beside its target, then move it there whole."""
    handle, temporary = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            figure.savefig(file, dpi=110, format=path.suffix[1:])
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def main() -> None:
    """Fit, print the held-out scores, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, help="where report_figure.png goes")
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    training, held_out = draw_data(2000, generator), draw_data(20_000, generator)
    figure = Figure(figsize=(10, 5.5), layout="compressed")
    for axes, covariance in zip(figure.subplots(1, 2), ("full", "diagonal"), strict=True):
        mixture = fit(training, covariance)
        score = -mixture.log_prob(held_out).mean().item()
        print(f"{COMPONENTS} {covariance} components: held-out NLL {score:.3f} per point")
        title = f"{COMPONENTS} components, {covariance} covariance\nheld-out NLL {score:.3f}"
        draw(axes, mixture, training[:800], title)
    figure.supxlabel(
        "dots: data · blue: density · orange: one and two standard deviations of each component, "
        "with its weight",
        size=10,
    )
    target = directory / "report_figure.png"
    save(figure, target)
    print(f"picture: {target}")


if __name__ == "__main__":
    main()
