"""Ranks of true parameters: against sbi's, closed forms, and laws at stated significance."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from torch import Generator

from condens import GaussianMixture, MDNRegressor, TransformedMixture
from condens.errors import ArgumentError, DimensionError, KindError, NotFiniteError, ShapeError
from condens.evaluation import simulators
from condens.evaluation.forecasts import PosteriorForecast
from condens.evaluation.simulators import (
    CoverageCurve,
    expected_coverage,
    predictive_distance,
    sbc,
    tarp,
)
from condens.inference import posterior as learn
from condens.nn import MixtureNetwork
from condens.training import Settings
from condens.transforms import Integer


def seeded(seed=0):
    return Generator().manual_seed(seed)


def normals(n, dimensions=1, *, loc=0.0, scale=1.0, names=None):
    """Return n equal Gaussians as a batch."""
    covariance = scale**2 * torch.eye(dimensions, dtype=torch.float64)
    return GaussianMixture.from_covariances(
        torch.ones(1), torch.full((1, dimensions), loc).double(), covariance[None], names=names
    ).expand([n])


def truths(n, dimensions=1, seed=0):
    return torch.randn(n, dimensions, generator=seeded(seed), dtype=torch.float64)


class Fixed:
    """A posterior as sbi's functions ask for it, with draws that are there."""

    def __init__(self, draws):
        self.draws = draws

    def sample_batched(self, *_, **__):
        return self.draws


# Against sbi.

S, N, D = 120, 150, 3
DRAWS = torch.randn(S, N, D, generator=seeded(1))
TRUTH = 1.3 * torch.randn(N, D, generator=seeded(2))
SEEN = torch.randn(N, 2, generator=seeded(3))


def test_ranks_are_those_of_sbi():
    from sbi.diagnostics import run_sbc

    theirs, _ = run_sbc(TRUTH, SEEN, Fixed(DRAWS), S, show_progress_bar=False)
    product = lambda theta, x: theta[..., 0] * theta[..., 1] + x[..., 0]  # noqa: E731
    other, _ = run_sbc(TRUTH, SEEN, Fixed(DRAWS), S, reduce_fns=[product], show_progress_bar=False)
    ours = sbc(DRAWS, TRUTH, SEEN, functions={"product": product}, names=["a", "b", "c"])
    assert ours.names == ("a", "b", "c", "product")
    assert ours.n_samples == S
    np.testing.assert_array_equal(ours.ranks, np.hstack([theirs.numpy(), other.numpy()]))
    np.testing.assert_array_equal(np.floor(ours.uniform * (S + 1)), ours.ranks)


def test_expected_coverage_is_that_of_sbi():
    from sbi.diagnostics import run_sbc

    density = lambda theta, x: -(theta**2).sum(-1) + theta[..., 0] * x[..., 0]  # noqa: E731
    below, _ = run_sbc(TRUTH, SEEN, Fixed(DRAWS), S, reduce_fns=[density], show_progress_bar=False)
    ours = expected_coverage(DRAWS, TRUTH, SEEN, log_prob=density)
    np.testing.assert_array_equal(ours.ranks, S - below[:, 0].numpy())


def test_tarp_is_that_of_sbi():
    from sbi.diagnostics import check_tarp, run_tarp

    references = 2 * torch.randn(N, D, generator=seeded(4))
    ecp, levels = run_tarp(
        TRUTH, SEEN, Fixed(DRAWS), references, S, show_progress_bar=False, num_bins=29
    )
    ours = tarp(DRAWS, TRUTH, references=references)
    inside = ours.ranks[:, None] / S < levels.numpy()[None, 1:-1]
    np.testing.assert_allclose(inside.mean(0), ecp[1:-1].numpy(), atol=1e-6)
    area, _ = check_tarp(ecp, levels)
    assert ours.area == pytest.approx(area, abs=0.02)
    assert ours.area < 0  # the truth is wider than the draws


@pytest.fixture(scope="module")
def sbi_posterior():
    from sbi.inference import NPE
    from sbi.utils import BoxUniform

    from condens.integrations.sbi import density_estimator, fit

    torch.manual_seed(0)
    prior = BoxUniform(-torch.ones(2), torch.ones(2))
    theta = prior.sample((400,))
    x = theta + 0.3 * torch.randn(400, 2)
    trainer = NPE(prior, density_estimator=density_estimator(), show_progress_bars=False)
    estimator = fit(trainer.append_simulations(theta, x), Settings(epochs=5))
    return trainer.build_posterior(estimator)


def test_a_posterior_of_sbi_is_right_about_its_own_draws(sbi_posterior):
    observations = torch.rand(300, 2) - 0.5
    own = sbi_posterior.sample_batched(
        (1,), x=observations, show_progress_bars=False, max_sampling_batch_size=300
    )[0]
    state = torch.random.get_rng_state()
    ranks = sbc(sbi_posterior, own, observations, n_samples=50)
    curve = expected_coverage(sbi_posterior, own, observations, n_samples=50)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(test.adjusted > 0.001 for test in (*ranks.tests, *curve.tests))
    again = sbc(sbi_posterior, own, observations, n_samples=50)
    np.testing.assert_array_equal(ranks.ranks, again.ranks)
    shifted = sbc(sbi_posterior, own + 0.3, observations, n_samples=50)
    bias = [test for test in shifted.tests if test.name == "bias"]
    assert all(test.effect > 0.3 and test.adjusted < 1e-6 for test in bias)
    # By the potential, where sbi has no normalised density: the same but for a constant.
    draws = sbi_posterior.sample_batched((5,), x=observations[:3], show_progress_bars=False)
    forecast = PosteriorForecast(sbi_posterior, observations[:3])
    fast = forecast.relative_log_prob_at(draws)
    forecast.normalised = False
    apart = fast - forecast.relative_log_prob_at(draws)
    torch.testing.assert_close(apart, apart[:1].expand_as(apart), atol=1e-4, rtol=0)


# Closed forms.


@pytest.mark.parametrize("scale", [0.6, 1.0, 1.7])
def test_ranks_are_distributed_as_they_should(scale):
    """P(rank = r) = ∫ φ(x) Binomial(r; S, Φ(x/s)) dx for draws of scale s about a unit normal."""
    n, draws = 20_000, 7
    expected = [
        integrate.quad(
            lambda x, r=r: stats.norm.pdf(x) * stats.binom.pmf(r, draws, stats.norm.cdf(x / scale)),
            -9,
            9,
        )[0]
        for r in range(draws + 1)
    ]
    found = sbc(normals(n, scale=scale), truths(n), n_samples=draws)
    counts = np.bincount(found.ranks[:, 0], minlength=draws + 1)
    assert stats.chisquare(counts, n * np.array(expected)).pvalue > 0.001
    ends, middle = counts[[0, -1]].mean(), counts[3:5].mean()
    if scale != 1.0:  # U-shaped where too narrow, a hill where too wide
        assert (ends > 1.2 * middle) if scale < 1 else (middle > 1.2 * ends)


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("measure", ["density", "distance"])
def test_coverage_of_normals_has_a_closed_form(scale, measure):
    """In two dimensions a region of coverage c holds 1 − (1 − c)^s² of the truths."""
    truth = truths(20_000, 2)
    # For TARP, ranges that scale both parameters alike.
    truth[0], truth[1] = 6.0, -6.0
    posterior = normals(len(truth), 2, scale=scale)
    curve = (
        expected_coverage(posterior, truth)
        if measure == "density"
        else tarp(posterior, truth, references=torch.zeros_like(truth))
    )
    for found in curve.at([0.3, 0.5, 0.9]):
        exact = 1 - (1 - found.coverage) ** scale**2
        # 199 draws blur it a little, without bias where the scale is right.
        slack = 4 * math.sqrt(exact * (1 - exact) / len(truth)) + (scale != 1) * 0.003
        assert found.observed == pytest.approx(exact, abs=slack)
    below = (1 - 2 ** -(scale**2 + 1)) / (scale**2 + 1)  # ∫ of (1 − c)^s² over the lower half
    area = 0.5 - (1 / (scale**2 + 1) - below) - 0.375
    assert curve.area == pytest.approx(area, abs=0.005)


def test_the_area_is_that_between_the_curves():
    needed = np.random.default_rng(0).beta(2, 1, 60)
    curve = CoverageCurve(needed, np.zeros(60, dtype=np.int64), 10)
    grid = np.linspace(0.5, 1, 200_001)
    observed = (needed[:, None] <= grid).mean(0) - grid
    assert curve.area == pytest.approx(integrate.trapezoid(observed, grid), abs=1e-5)


def test_the_median_distance_is_that_of_rayleigh():
    density = normals(1, 2)[0]
    found = predictive_distance(density, lambda theta: theta + 3, [3, 3], n_samples=20_000)
    assert found.median == pytest.approx(math.sqrt(2 * math.log(2)), abs=0.03)
    mean, error = found.mean
    assert mean == pytest.approx(math.sqrt(math.pi / 2), abs=4 * error)
    assert error == pytest.approx(math.sqrt((2 - math.pi / 2) / 20_000), rel=0.05)


# Laws over seeds.


@pytest.mark.parametrize("measure", ["sbc", "coverage", "tarp"])
def test_right_posteriors_fail_as_often_as_stated(measure):
    """A family of tests at 5 %, of few draws even: 12 of 100 have a probability of 0.0015."""
    failed = 0
    for seed in range(100):
        truth, posterior = truths(60, 2, seed), normals(60, 2)
        ask = {"sbc": sbc, "coverage": expected_coverage, "tarp": tarp}[measure]
        found = ask(posterior, truth, n_samples=5, seed=seed)
        failed += min(test.adjusted for test in found.tests) < 0.05
    assert 1 <= failed <= 12


@pytest.mark.parametrize(
    ("loc", "scale", "name", "effect"),
    [(0.0, 0.8, "spread", 1.25), (0.0, 1.25, "spread", 0.8), (-0.5, 1.0, "bias", 0.5)],
)
def test_wrong_posteriors_fail_the_right_test(loc, scale, name, effect):
    posterior = normals(1000, 2, loc=loc, scale=scale, names=["a", "b"])
    found = sbc(posterior, truths(1000, 2), n_samples=999)
    for subject in ("a", "b"):
        tests = {test.name: test for test in found.tests if test.subject == subject}
        assert tests[name].effect == pytest.approx(effect, abs=0.1)
        assert tests[name].adjusted < 1e-6
        other = "bias" if name == "spread" else "spread"
        assert tests[other].adjusted > 0.001
    for ask in (expected_coverage, tarp):
        assert min(test.adjusted for test in ask(posterior, truths(1000, 2)).tests) < 0.01
    # Balls around random points say little of a bias: their area is then −0.006 in the limit.
    for ask in (expected_coverage, tarp) if scale != 1 else (expected_coverage,):
        assert (ask(posterior, truths(1000, 2)).area > 0) == (scale > 1)


def test_the_seed_of_torch_is_another():
    """Truths drawn with the seed that the draws have are still independent of these."""
    truth = truths(2000, seed=3)
    for ask in (sbc, expected_coverage, tarp):
        found = ask(normals(2000), truth, n_samples=1, seed=3)
        assert min(test.adjusted for test in found.tests) > 0.001


def test_the_prior_passes_by_parameters_and_fails_by_the_likelihood():
    truth = truths(1000)
    seen = truth + 0.5 * torch.randn(1000, 1, generator=seeded(5))
    likelihood = lambda theta, x: -(((x - theta) / 0.5) ** 2).sum(-1)  # noqa: E731
    found = sbc(normals(1000), truth, seen, functions={"log likelihood": likelihood})
    by_subject = {}
    for test in found.tests:
        by_subject.setdefault(test.subject, []).append(test.adjusted)
    assert min(by_subject["parameter_0"]) > 0.01
    assert min(by_subject["log likelihood"]) < 1e-12
    # TARP sees it where its points depend on the observation.
    assert min(t.adjusted for t in tarp(normals(1000), truth, seen).tests) > 0.01
    aware = tarp(normals(1000), truth, seen, references=lambda x: x)
    assert min(t.adjusted for t in aware.tests) < 1e-12


def test_ranks_of_whole_numbers_are_uniform():
    base = normals(4000, 1, loc=1.5, scale=0.8)
    counts = TransformedMixture(base, [Integer()])
    truth = counts.sample(generator=seeded(6))
    assert len(truth.unique()) < 10
    found = sbc(counts, truth, n_samples=9)
    assert stats.chisquare(np.bincount(found.ranks[:, 0], minlength=10)).pvalue > 0.001
    curve = expected_coverage(counts, truth, n_samples=9)
    assert stats.chisquare(np.bincount(curve.ranks, minlength=10)).pvalue > 0.001


# Kinds of posteriors.


def test_every_kind_of_posterior_answers_alike():
    rng = np.random.default_rng(0)
    theta = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    seen = pd.DataFrame(theta.to_numpy() + rng.normal(size=(60, 2)), columns=["u", "v"])
    learned = learn(theta, seen, settings=Settings(epochs=2))
    given = torch.tensor(seen.to_numpy())
    mixtures = learned.given(given)
    reference = sbc(mixtures, theta)
    assert reference.names == ("a", "b")
    model = MDNRegressor(settings=Settings(epochs=2)).fit(seen, theta)
    networks = learned.network.train()
    for posterior, observations, like in (
        (learned, seen, mixtures),
        (learned, given.numpy(), mixtures),
        (networks, seen.to_numpy().tolist(), mixtures),
        (networks, seen, mixtures),
        (model, seen, model.predict_dist(seen)),
    ):
        expected = sbc(like, theta)
        for parameters in (theta, theta[["b", "a"]], theta.to_numpy()):
            found = sbc(posterior, parameters, observations)
            np.testing.assert_array_equal(found.ranks, expected.ranks)
        curve = expected_coverage(posterior, theta, observations)
        np.testing.assert_array_equal(curve.ranks, expected_coverage(like, theta).ranks)
        points = tarp(posterior, theta, observations)
        np.testing.assert_array_equal(points.needed, tarp(like, theta).needed)
        exact = predictive_distance(like[0], lambda t: t, seen.iloc[0])
        for one in (seen.iloc[0], seen[:1]):
            near = predictive_distance(posterior, lambda t: t, one)
            assert near.median == pytest.approx(exact.median)
    assert networks.training


def test_expected_coverage_of_mixtures_counts_higher_densities():
    mixtures = normals(20, 2, scale=0.7)
    truth, draws = truths(20, 2), mixtures.sample((99,), generator=seeded(0))
    expected = (mixtures.log_prob(draws) > mixtures.log_prob(truth)).sum(0)
    found = expected_coverage(draws, truth, log_prob=lambda theta, _: mixtures.log_prob(theta))
    np.testing.assert_array_equal(found.ranks, expected.numpy())


def test_blocks_change_nothing(monkeypatch):
    whole = [sbc(DRAWS, TRUTH), tarp(DRAWS, TRUTH, SEEN, references=lambda x: x[:, [0, 1, 0]])]
    monkeypatch.setattr(simulators, "NUMBERS_PER_BLOCK", 7 * S * D)
    parts = [sbc(DRAWS, TRUTH), tarp(DRAWS, TRUTH, SEEN, references=lambda x: x[:, [0, 1, 0]])]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one.ranks, other.ranks)


def test_plain_values_come_out():
    import json

    found = sbc(normals(20, names=["<a>"]), truths(20))
    values = json.loads(json.dumps(found.to_dict()))
    assert values["ranks"]["<a>"] == found.ranks[:, 0].tolist()
    assert len(values["tests"]) == 3
    curve = tarp(normals(20), truths(20))
    values = json.loads(json.dumps(curve.to_dict()))
    assert values["area"] == curve.area
    assert [c["coverage"] for c in values["coverages"]] == [0.5, 0.8, 0.9, 0.95]


def test_they_draw_themselves():
    from matplotlib.figure import Figure

    found = sbc(DRAWS, TRUTH, functions={"$f$<b>": lambda t, _: t[..., 0]})
    figure = found.plot(Figure())
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert len(panels) == len(found.names) == 4
    for panel, ranks in zip(panels, found.ranks.T, strict=True):
        edges = np.array([bar.get_x() for bar in panel.patches])
        counts = np.bincount(np.searchsorted(edges, ranks, side="right") - 1, minlength=len(edges))
        widths = np.array([bar.get_width() for bar in panel.patches])
        heights = counts / (widths / widths.sum() * N)
        np.testing.assert_allclose([bar.get_height() for bar in panel.patches], heights, rtol=1e-6)
    curve = tarp(DRAWS, TRUTH)
    line = curve.plot(Figure().subplots()).lines[0]
    asked, observed = line.get_data()
    np.testing.assert_allclose(observed, (curve.needed[:, None] <= asked).mean(0), atol=1e-12)


# Simulators.


def test_simulations_that_fail_are_counted():
    def simulate(theta):
        out = theta[:, :1].clone()
        out[theta[:, 0] > 1] = math.nan
        return out

    found = predictive_distance(normals(1, 2), simulate, [0.0])
    assert found.n_failed + len(found.distances) == 1000
    assert found.n_failed == pytest.approx(159, abs=50)


def test_simulators_see_draws_and_their_own_seed():
    def simulate(theta):
        assert theta.shape == (50, 2)
        return torch.randn(50, 3, 4)

    one, other = (
        predictive_distance(DRAWS[:50, 0, :2], simulate, torch.zeros(3, 4)) for _ in range(2)
    )
    np.testing.assert_array_equal(one.distances, other.distances)
    largest = predictive_distance(
        DRAWS[:50, 0, :2],
        simulate,
        torch.zeros(3, 4),
        distance=lambda x, y: (x - y).abs().amax((1, 2)),
    )
    assert (largest.distances < one.distances).all()


# Mistakes.

HOSTILE = [
    (lambda: sbc(normals(5), truths(6)), ShapeError, "6 rows of parameters"),
    (lambda: sbc(normals(6, 2), truths(6)), ShapeError, "is over 2"),
    (lambda: sbc(DRAWS[0], TRUTH), ShapeError, r"draws \[S, n, D\]"),
    (lambda: sbc(DRAWS, TRUTH[:9]), ShapeError, "of n = 9 rows"),
    (lambda: sbc(DRAWS, TRUTH, SEEN[:9]), ShapeError, "observations has shape [9, 2]"),
    (lambda: sbc(DRAWS * math.nan, TRUTH), NotFiniteError, "draws that are NaN"),
    (lambda: sbc(DRAWS, TRUTH * math.inf), NotFiniteError, "inf"),
    (lambda: sbc(DRAWS, [[math.nan] * 3, *TRUTH[1:].tolist()]), NotFiniteError, "row 0"),
    (lambda: sbc("model", TRUTH, SEEN), KindError, "str"),
    (lambda: sbc(None, TRUTH, SEEN), KindError, "NoneType"),
    (lambda: sbc(MixtureNetwork.of(conditions=2, targets=3), TRUTH), ArgumentError, "observations"),
    (lambda: sbc(DRAWS, TRUTH, functions={"f": 3}), KindError, "'f'"),
    (lambda: sbc(DRAWS, TRUTH, functions={"f": lambda a, _: a}), ShapeError, "f(…)"),
    (
        lambda: sbc(DRAWS, TRUTH, functions={"f": lambda a, _: a[..., 0].log()}),
        NotFiniteError,
        "is NaN",
    ),
    (lambda: sbc(DRAWS, TRUTH, names=["a"]), ArgumentError, "names"),
    (lambda: sbc(normals(N, 3), TRUTH, n_samples=0), ArgumentError, "n_samples is 0"),
    (lambda: sbc(DRAWS, TRUTH, seed=-1), ArgumentError, "seed"),
    (lambda: sbc(normals(9, names=["a"]), pd.DataFrame({"b": range(9)})), DimensionError, "b"),
    (lambda: expected_coverage(DRAWS, TRUTH), ArgumentError, "tarp"),
    (lambda: tarp(DRAWS, TRUTH, references=SEEN), ShapeError, "references"),
    (lambda: tarp(DRAWS, TRUTH, SEEN, references=lambda x: x), ShapeError, "references"),
    (lambda: predictive_distance(DRAWS[:, 0], lambda t: t[0], [0.0] * 3), ShapeError, "simulator"),
    (lambda: predictive_distance(DRAWS, lambda t: t, [0.0] * 3), ShapeError, "rows"),
    (lambda: predictive_distance(DRAWS[:, 0], lambda t: t, [math.nan] * 3), NotFiniteError, "NaN"),
    (
        lambda: predictive_distance(DRAWS[:, 0], lambda t: t * math.nan, [0.0] * 3),
        NotFiniteError,
        "120 of 120",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), HOSTILE)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words.replace("\\", "") in str(caught.value)
