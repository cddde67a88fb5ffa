"""What is drawn, read back from matplotlib's artists."""

import numpy as np
import torch
from matplotlib.collections import QuadMesh
from matplotlib.contour import ContourSet
from matplotlib.path import Path

from condens import GaussianMixture, TransformedMixture
from condens.transforms import Integer, Interval, Positive, Real

KINDS = {
    "real": Real(),
    "positive": Positive(),
    "unit": Interval(0.0, 1.0),
    "count": Integer(lower=0),
    "whole": Integer(),
}


def mixture(
    n_dims, n_components=3, *, seed=0, names=None, kinds=None, batch=(), spread=1.5, scale=1.0
):
    """Return a mixture with dense covariances, seen through transforms where `kinds` are given."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*batch, n_components, *shape, generator=g, dtype=torch.float64)

    size = n_dims * (n_dims + 1) // 2
    base = GaussianMixture(draw(), spread * draw(n_dims), 0.5 * draw(size), names=names)
    base = base.affine(scale)
    return base if kinds is None else TransformedMixture(base, [KINDS[kind] for kind in kinds])


def contours(axes):
    """Return the contour lines of axes as {level: path}."""
    sets = [one for one in axes.collections if isinstance(one, ContourSet) and not one.filled]
    return [dict(zip(one.levels, one.get_paths(), strict=True)) for one in sets]


def inside(path, points):
    """Tell which points [S, 2] lie inside an outline: of its rings, within an odd number."""
    rings = [Path(ring) for ring in path.to_polygons(closed_only=True)]
    return np.logical_xor.reduce([ring.contains_points(points) for ring in rings])


def texts(figure):
    """Return all texts of a figure that are drawn."""
    from matplotlib.text import Text

    return [one.get_text() for one in figure.findobj(Text) if one.get_visible()]


def heat_map(axes):
    """Return the points x, y of a heat map, whose cells end half way between them, and its values.

    The first cell is as wide on either side of its point; the others follow from their ends.
    """
    (mesh,) = [one for one in axes.collections if isinstance(one, QuadMesh)]
    corners = mesh.get_coordinates()

    def points(ends):
        found = [(ends[0] + ends[1]) / 2]
        for end in ends[1:-1]:
            found.append(2 * end - found[-1])
        return np.array(found)

    return points(corners[0, :, 0]), points(corners[:, 0, 1]), np.asarray(mesh.get_array())
