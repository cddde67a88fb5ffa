"""The arm of the demo: its geometry, and its exact posterior against direct quadrature."""

import numpy as np
import pytest
from scipy import stats

from condens.cli.arm import LENGTHS, NOISE, SCALES, corners, exact_log_prob, hand, simulate


def reached(height, angles):
    """Return the hand as a complex number, by turning one link after the other."""
    first, second, third = (np.exp(1j * angle) for angle in angles)
    return 1j * height + first * (LENGTHS[0] + second * (LENGTHS[1] + third * LENGTHS[2]))


def test_the_hand_is_where_the_links_lead():
    rng = np.random.default_rng(0)
    joints = rng.normal(size=(50, 4))
    found = reached(joints[:, 0], joints[:, 1:].T)
    np.testing.assert_allclose(hand(joints), np.stack([found.real, found.imag], -1), atol=1e-12)
    links = np.diff(corners(joints), axis=1)
    np.testing.assert_allclose(np.hypot(*links.T).T, np.tile(LENGTHS, (50, 1)), atol=1e-12)


@pytest.mark.slow
def test_the_posterior_is_that_of_quadrature_over_all_joints():
    """p(point) by the trapezoidal rule over four joints, at which no integral is done by hand.

    The integrand is smooth and falls to nothing: with steps of 1.6 deviations of the noise at the
    hand the rule is exact to some 5e-4. The arm's own rests on random angles, whose seeds tell its
    error: 3 deviations of it are about 1 %.
    """
    points, joints = (part[1::2] for part in simulate(4, seed=3))
    steps = 1.6 * NOISE / np.array([1, LENGTHS.sum(), LENGTHS[1:].sum(), LENGTHS[2]])
    grids = [
        np.arange(-4 * scale, 4 * scale, step) for scale, step in zip(SCALES, steps, strict=True)
    ]
    prior = [stats.norm.pdf(grid, scale=scale) for grid, scale in zip(grids, SCALES, strict=True)]
    evidence = np.zeros(len(points))
    for angle, weight in zip(grids[1], prior[1], strict=True):
        place = reached(0, np.ix_([angle], grids[2], grids[3]))[0]
        for number, (across, up) in enumerate(points):
            level = up - place.imag - grids[0][:, None, None]
            seen = stats.norm.pdf(across - place.real, scale=NOISE)
            seen = seen * np.tensordot(prior[0], np.exp(-0.5 * (level / NOISE) ** 2), 1)
            evidence[number] += weight * prior[2] @ seen @ prior[3]
    evidence *= np.prod(steps) / (np.sqrt(2 * np.pi) * NOISE)
    expected = (
        stats.norm.logpdf(joints, scale=SCALES).sum(-1)
        + stats.norm.logpdf(points, hand(joints), NOISE).sum(-1)
        - np.log(evidence)
    )
    found = np.stack([exact_log_prob(points, joints, seed) for seed in range(30)])
    error = found.std(0, ddof=1) / 30**0.5
    assert (error < 4e-3).all()
    assert (np.abs(found.mean(0) - expected) < 3 * error).all()
