"""An arm on a rail, and which positions of its joints bring the hand to a point.

Four numbers, the height of the shoulder on the rail and three angles, put the hand at a point of
the plane, which is seen with noise. The way back has no single answer: many arms reach a point.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

LENGTHS = np.array([0.5, 0.5, 1.0])
# Standard deviations of the joints, around zero: all that is known before the point is seen.
SCALES = np.array([0.25, 0.5, 0.5, 0.5])
NOISE = 0.05
JOINTS = ("height", "shoulder", "elbow", "wrist")
POINT = ("across", "up")
# Angles on which the exact answer rests, and points that are compared with them at a time.
N_ANGLES, POINTS_AT_A_TIME = 200_000, 20


def corners(joints: Array) -> Array:
    """Return shoulder, elbow, wrist and hand of arms [..., 4] → [..., 4, 2]."""
    angles = joints[..., 1:].cumsum(-1)
    steps = LENGTHS[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)
    start = np.stack([np.zeros_like(joints[..., 0]), joints[..., 0]], -1)
    return np.concatenate([start[..., None, :], start[..., None, :] + steps.cumsum(-2)], -2)


def hand(joints: Array) -> Array:
    """Return the points [..., 2] that the hands of arms [..., 4] reach.

    >>> hand(np.zeros(4)).tolist()
    [2.0, 0.0]
    """
    return corners(joints)[..., -1, :]


def simulate(count: int, seed: int) -> tuple[Array, Array]:
    """Return points [n, 2], seen with noise, and the joints [n, 4] that led there."""
    rng = np.random.default_rng(seed)
    joints = SCALES * rng.standard_normal((count, 4))
    return hand(joints) + NOISE * rng.standard_normal((count, 2)), joints


def exact_log_prob(point: Array, joints: Array, seed: int = 0) -> Array:
    """Return log p(joints | point) by Bayes' rule. Shapes: [n, 2], [n, 4] → [n].

    p(point) is the mean, over many angles from the prior, of the density of the point given these:
    the height enters additively and integrates in closed form.
    """
    rng = np.random.default_rng(seed)
    angles = SCALES * rng.standard_normal((N_ANGLES, 4)) * [0, 1, 1, 1]
    reached, spread = hand(angles), np.array([NOISE, math.hypot(NOISE, SCALES[0])])
    evidence = np.concatenate(
        [
            np.exp(-0.5 * (((some[:, None] - reached) / spread) ** 2).sum(-1)).mean(1)
            for some in np.array_split(point, -(-len(point) // POINTS_AT_A_TIME))
        ]
    )
    log_evidence = np.log(evidence) - np.log(spread).sum() - math.log(2 * math.pi)
    return _normal(joints, SCALES) + _normal(point - hand(joints), np.full(2, NOISE)) - log_evidence


def _normal(value: Array, scale: Array) -> Array:
    each = -0.5 * (value / scale) ** 2 - np.log(scale) - 0.5 * math.log(2 * math.pi)
    return np.asarray(each.sum(-1))


def draw_arms(axes: "Axes", joints: Array, point: Array, title: str) -> None:
    """Draw arms [n, 4] that should reach a point [2]."""
    places = corners(joints)
    for place in places:
        axes.plot(*place.T, color="C0", alpha=0.12, linewidth=1.2, solid_capstyle="round")
    axes.plot(*places[0].T, color="C0", linewidth=2.2, marker="o", markersize=3)
    axes.axvline(0, color="0.75", linewidth=3, zorder=0)
    axes.plot(*point, marker="+", color="C3", markersize=14, markeredgewidth=2)
    shown: dict[str, Any] = {"xlim": (-0.6, 2.3), "ylim": (-1.4, 1.6), "aspect": "equal"}
    axes.set(title=title, xticks=[], yticks=[], **shown)
