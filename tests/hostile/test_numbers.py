"""Right numbers, or a named refusal, at every scale: against mpmath and dense formulas."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from helpers import independent as references
from helpers.independent import Exact
from helpers.search import finite, near, need, no_nan, numbers, property_of

from condens import GaussianMixture, LowRankMixture, TransformedMixture, functional
from condens.evaluation import Calibration
from condens.nn import HEADS, MixtureNetwork, Standardiser
from condens.transforms import Integer, Interval, Positive, Real

pytestmark = pytest.mark.slow

FLOATS = {"float32": torch.float32, "float64": torch.float64}


def parameters(d, k, dim, *, spread=2.0, log_scale=0.5, batch=(), full=None):
    """Return float64 logits, means and factors."""
    full = d.flag("full") if full is None else full
    t = dim * (dim + 1) // 2 if full else dim
    factors = d.normal(*batch, k, t) / (1 if not full else dim**0.5)
    factors[..., :dim] = log_scale * d.normal(*batch, k, dim)
    return d.normal(*batch, k), spread * d.normal(*batch, k, dim), factors


@property_of(350, refusals=False)
def test_distribution_functions_stay_between_zero_and_one(d):
    """0 ≤ F ≤ 1, F rises, and F is the sum of its normals."""
    dtype = d.choice("dtype", FLOATS)
    k = d.integer("n_components", 1, 400)
    scale = d.power("scale", -12, 12)
    logits = 8 * d.normal(k) if d.flag("uneven") else torch.zeros(k, dtype=torch.float64)
    means, deviations = scale * d.normal(k, 1), scale * (d.normal(k, 1)).exp()
    given = [p.to(dtype) for p in (logits, means, -deviations.log())]
    mixture = GaussianMixture(*given)
    grid = scale * torch.cat([torch.linspace(-60, 60, 41), torch.tensor([-1e30, 1e30])]).double()
    grid = grid.sort().values
    values = mixture.cdf(grid.to(dtype).unsqueeze(-1))
    need(float(values.max()) <= 1, f"cdf exceeds 1 by {float(values.max()) - 1:g}")
    need(float(values.min()) >= 0, f"cdf is {float(values.min()):g}")
    need(bool((values.diff() >= 0).all()), "cdf falls")
    wide = [g.double() for g in given]
    z = (grid.to(dtype).double()[:, None] - wide[1].T) * wide[2].exp().T
    expected = (torch.softmax(wide[0], -1) * torch.special.ndtr(z)).sum(-1)
    near(values, expected, "cdf", rtol=1e-5, atol=1e-6 if dtype is torch.float32 else 1e-12)
    if d.flag("transformed"):
        mapped = TransformedMixture(mixture, [Positive()]) if d.flag("positive") else (
            TransformedMixture(mixture, [Integer()]))  # fmt: skip
        at = mapped.cdf(grid.abs().to(dtype).unsqueeze(-1))
        need(float(at.min()) >= 0 and float(at.max()) <= 1, "a mapped cdf leaves [0, 1]")


@property_of(400)
def test_weights_of_any_scale(d):
    """Weights count by their ratios, wherever they lie in the range of the dtype."""
    count = d.integer("count", 1, 600)
    dtype = d.choice("dtype", FLOATS)
    top = {torch.float32: 38, torch.float64: 308}[dtype]
    unit = math.log10(d.edge("unit", -top + 8, top - 0.01))
    weights = torch.from_numpy(10.0 ** (unit - d.rng.uniform(0, 3, count))).to(dtype)
    zeros = d.flag("some zero", 0.3)
    if zeros and count > 1:
        weights[::2] = 0
        weights[0] = 10.0**unit
    exact = [mpmath.mpf(float(w)) for w in weights]
    total = mpmath.fsum(exact)
    expected = [float(w / total) for w in exact]
    tolerance = 1e-12 if dtype is torch.float64 else 1e-4
    door = d.choice("door", ["from_covariances", "from_precisions", "ensemble", "from_scale_tril"])
    if door == "ensemble":
        one = GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1)).to(dtype)
        mixture = GaussianMixture.ensemble([one] * count, weights)
    else:
        make = getattr(GaussianMixture, door)
        eye = torch.eye(2, dtype=dtype).expand(count, 2, 2)
        mixture = make(weights, torch.zeros(count, 2, dtype=dtype), eye)
    near(mixture.weights, expected, f"weights of {door}", rtol=tolerance, atol=1e-30)


@property_of(350)
def test_probabilities_of_large_counts(d):
    """P(Y = y) = Φ(b) − Φ(a) of the cell, up to the largest whole numbers."""
    lower = d.choice("lower", [None, 0, 1, -7, 40])
    y = d.note("y", float(math.floor(d.power("y", 0, 17.5))))
    k = d.integer("n_components", 1, 3)
    near_y = math.log(y) if lower is not None else y
    unit = 1.0 if lower is not None else max(1.0, y * d.power("relative", -3, 0))
    means = (near_y + unit * 2 * d.normal(k, 1)).double()
    deviations = unit * (0.7 * d.normal(k, 1)).exp()
    logits = d.normal(k)
    mixture = TransformedMixture(
        GaussianMixture(logits, means, -deviations.log()), [Integer(lower)]
    )
    y = max(y, float(lower or 0))
    exact = Exact(logits, means, -deviations.log())
    mpmath.mp.dps = 60
    terms = []
    for log_weight, mean, covariance in zip(
        exact.log_weights, exact.means, exact.covariances, strict=True
    ):
        s = mpmath.sqrt(covariance[0, 0])
        low, high = mpmath.mpf(y), mpmath.mpf(y) + 1
        if lower is not None:
            low = mpmath.log(low - lower) if y > lower else -mpmath.inf
            high = mpmath.log(high - lower)
        a, b = (low - mean[0]) / s, (high - mean[0]) / s
        terms.append(log_weight + references.normal_mass(a, b))
    expected = float(references.log_sum(terms))
    got = mixture.log_prob(torch.tensor([y], dtype=torch.float64))
    near(got, expected, f"log P(Y = {y:g})", rtol=1e-9, atol=1e-9)


@property_of(200)
def test_conditioning_on_large_counts(d):
    """Given a large count, its narrow cell acts as a point in its middle."""
    lower = d.choice("lower", [0, 3, None])
    y = d.note("y", float(math.floor(d.power("y", 7, 17.5))))
    mpmath.mp.dps = references.DIGITS
    at = mpmath.mpf(y) + 0.5 if lower is None else mpmath.log(mpmath.mpf(y) + 0.5 - lower)
    unit = 1.0 if lower is not None else max(1e6, y * d.power("relative", -10, 0))
    k = d.integer("n_components", 1, 3)
    rho = torch.from_numpy(d.rng.uniform(-0.95, 0.95, k))
    means = torch.stack([d.normal(k), float(at) + unit * 3 * d.normal(k)], -1)
    cross = torch.stack([torch.ones(k), rho, rho, torch.ones(k)], -1).reshape(k, 2, 2).double()
    scale = torch.tensor([1.0, unit], dtype=torch.float64)
    covariances = cross * torch.outer(scale, scale)
    base = GaussianMixture.from_covariances(torch.ones(k).double(), means, covariances)
    given = TransformedMixture(base, [Real(), Integer(lower)]).condition({1: y})
    offsets = [(at - mpmath.mpf(float(m))) / unit for m in means[:, 1]]
    weights = [mpmath.e ** (-(z**2) / 2) for z in offsets]
    centres = [
        m + r * z for m, r, z in zip(means[:, 0].tolist(), rho.tolist(), offsets, strict=True)
    ]
    total = mpmath.fsum(weights)
    expected = mpmath.fsum(w * c for w, c in zip(weights, centres, strict=True)) / total
    near(given.mean, [float(expected)], "conditional mean", rtol=1e-7, atol=1e-7)


@property_of(180)
def test_crps_of_positive_targets(d):
    """The score of lognormal mixtures, right to 1e-9 or refused."""
    k = d.integer("n_components", 1, 3)
    mu = d.rng.normal(0, d.number("spread", 0, 6), k)
    sigma = 10 ** d.rng.uniform(-2, math.log10(30), k)
    weights = d.rng.uniform(0.05, 1, k)
    y = d.power("y", -6, 8)
    mixture = TransformedMixture(
        GaussianMixture(*(torch.from_numpy(v) for v in
                          (np.log(weights), mu[:, None], -np.log(sigma)[:, None]))),
        [Positive()],
    )  # fmt: skip
    d.note("mu", mu.tolist())
    d.note("sigma", sigma.tolist())
    score = mixture.crps(torch.tensor([y], dtype=torch.float64))
    mpmath.mp.dps = 450
    # The parameters as the mixture holds them.
    held = mixture.base
    expected = float(
        references.lognormal_crps(y, held.weights.tolist(), held.means[:, 0].tolist(),
                                  [mpmath.e ** -mpmath.mpf(float(v)) for v in held.factors[:, 0]])
    )  # fmt: skip
    mpmath.mp.dps = references.DIGITS
    near(float(score), expected, "crps", rtol=1e-8, atol=1e-300)


@property_of(350)
def test_densities_of_rows_with_gaps(d):
    """log p of what was observed, for factors of any condition number, by every door."""
    k, dim = d.integer("n_components", 1, 3), d.integer("dimensions", 2, 4)
    size = d.number("log10 of the largest factor", 0, 10)
    logits, means, factors = parameters(d, k, dim, full=True)
    signs = torch.from_numpy(d.rng.choice([-1.0, 0.0, 1.0], (k, dim)))
    factors[..., :dim] = math.log(10) * size * signs / 2 + 0.3 * d.normal(k, dim)
    factors[..., dim:] = d.normal(k, factors.shape[-1] - dim) * 10 ** d.number("strict", 0, size)
    x = means[0] + d.normal(dim)
    missing = [i for i in range(dim) if d.random.random() < 0.5] or [0]
    seen = [i for i in range(dim) if i not in missing]
    gaps = x.clone()
    gaps[missing] = math.nan
    door = d.choice("door", ["partial_log_prob", "observed_log_prob", "marginal"])
    # The condition number itself asks for that many digits of the input, and no more.
    mpmath.mp.dps = references.DIGITS
    exact = Exact(logits, means, factors)
    expected = float(exact.marginal_log_prob(seen, [float(x[i]) for i in seen]))
    if door == "partial_log_prob":
        got = functional.partial_log_prob(gaps, logits, means, factors)
    elif door == "observed_log_prob":
        got = GaussianMixture(logits, means, factors).observed_log_prob(gaps)
    else:
        mixture = GaussianMixture(logits, means, factors)
        got = mixture.marginal(seen).log_prob(x[seen]) if seen else torch.zeros(())
    near(got, expected, door, rtol=1e-5, atol=1e-5)


@property_of(150, refusals=False)
def test_heads_see_rows_with_gaps_exactly(d):
    """A head's loss of a row with gaps is that of the mixture's marginal, gradients finite."""
    kind = d.choice("head", list(HEADS))
    k, dim, n = d.integer("n_components", 1, 4), d.integer("dimensions", 1, 5), 6
    head = HEADS[kind](3, dim, k).double()
    with torch.no_grad():
        head.linear.weight.copy_(d.normal(*head.linear.weight.shape) * d.power("gain", -1, 0.7))
    features = d.normal(n, 3).requires_grad_()
    target = 2 * d.normal(n, dim)
    gaps = torch.from_numpy(d.rng.random((n, dim)) < 0.4)
    target = target.masked_fill(gaps, math.nan)
    weights = d.normal(n).abs()
    got = head.loss(features, target, weights)
    mixture = head(features.detach())
    full = mixture.to_full() if isinstance(mixture, LowRankMixture) else mixture
    expected = 0.0
    for i in range(n):
        seen = (~gaps[i]).nonzero().flatten().tolist()
        if seen:
            mpmath.mp.dps = references.DIGITS
            exact = Exact(full.logits[i], full.means[i], full.factors[i])
            expected -= float(weights[i]) * float(
                exact.marginal_log_prob(seen, [float(target[i, j]) for j in seen])
            )
    near(got, expected, "loss", rtol=1e-6, atol=1e-6)
    got.backward()
    finite(features.grad, "gradient of the features")


@property_of(400)
def test_gradients_of_extreme_factors(d):
    """Losses and gradients are right or infinite, and never NaN, at every finite log-diagonal."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = d.integer("rows", 1, 12), d.integer("n_components", 1, 3), d.integer("dim", 1, 4)
    full = d.flag("full")
    top = d.number("log-diagonal", 20, 130 if dtype is torch.float32 else 354)
    logits, means, factors = parameters(d, k, dim, batch=(n,), full=full)
    factors[..., :dim] = top * torch.from_numpy(d.rng.choice([-1, 1, 0.5], (n, k, dim)))
    at = d.choice("target", ["a mean", "near", "far"])
    target = means[:, 0].clone()
    if at == "near":
        target = target + torch.exp(-factors[:, 0, :dim]).clamp(max=1e30) * d.normal(n, dim)
    elif at == "far":
        target = target + 3 * d.normal(n, dim)
    given = [p.to(dtype) for p in (target, logits, means, factors)]
    if at == "a mean":
        given[0] = given[2][:, 0].clone()
    given = [g.requires_grad_() for g in given]
    door = d.choice("door", ["nll", "log_prob", "partial"])
    call = {"nll": functional.nll, "log_prob": lambda *v: -functional.log_prob(*v),
            "partial": lambda *v: -functional.partial_log_prob(*v)}[door]  # fmt: skip
    loss = no_nan(call(*given), f"{door}")
    gradients = torch.autograd.grad(loss.sum(), given)
    for name, gradient in zip(("target", "logits", "means", "factors"), gradients, strict=True):
        no_nan(gradient, f"gradient of {name} by {door}")
    twins = [g.detach().double().requires_grad_() for g in given]
    expected = references.nll(*twins)
    if bool(expected.isfinite().all()) and float(expected.abs().max()) < 1e30:
        exact = torch.autograd.grad(expected.sum(), twins)
        tolerance = 1e-7 if dtype is torch.float64 else 1e-2
        size = max(1.0, float(expected.abs().max()))
        near(loss, expected, door, rtol=tolerance, atol=tolerance * size)
        if all(bool(e.isfinite().all()) for e in exact):
            held = torch.finfo(dtype).max / 10
            for name, ours, theirs in zip(("target", "logits", "means", "factors"), gradients,
                                          exact, strict=True):  # fmt: skip
                ours, theirs = ours.double(), theirs
                small = theirs.abs() < held
                ours, theirs = ours[small], theirs[small]
                scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
                near(ours, theirs, f"gradient of {name} by {door}", rtol=tolerance,
                     atol=10 * tolerance * scale)  # fmt: skip


@property_of(220)
def test_quantiles_of_extreme_scales(d):
    """F(F⁻¹(p)) = p by mpmath, for scales over the whole range of the dtype."""
    k = d.integer("n_components", 1, 4)
    top = d.number("log-diagonal", *d.random.choice([(0, 353), (345, 354.5)]))
    ends = [-1.0, 1.0] if d.flag("at the ends") else d.rng.uniform(-1, 1, 9)
    log_diagonal = top * torch.from_numpy(d.rng.choice(ends, (k, 1)))
    if d.flag("all alike"):
        log_diagonal = log_diagonal[:1].expand(k, 1).clone()
    reach = torch.exp(-log_diagonal)
    where = d.choice("means", {"zero": 0.0, "zero again": 0.0, "by scale": 2 * reach, "of order one": 1.0,
                               "by the least": reach.min(), "by the largest": reach.max()})  # fmt: skip
    means = where * d.normal(k, 1)
    logits = 2 * d.normal(k)
    mixture = GaussianMixture(logits, means, log_diagonal)
    levels = [d.power("tail", -12, -0.4), d.number("middle", 0.05, 0.95)]
    found = finite(mixture.icdf(torch.tensor(levels, dtype=torch.float64)), "icdf")[:, 0].tolist()
    mpmath.mp.dps = references.DIGITS
    weights = [mpmath.e ** mpmath.mpf(float(v)) for v in logits]
    total = mpmath.fsum(weights)
    deviations = [mpmath.e ** -mpmath.mpf(float(u)) for u in log_diagonal[:, 0]]
    centres = [mpmath.mpf(float(m)) for m in means[:, 0]]

    def below_one(z):
        return mpmath.mpf(z > 0) if abs(z) > 1e4 else mpmath.ncdf(z)

    def probability(x):
        return (
            mpmath.fsum(
                w * below_one((x - m) / s)
                for w, m, s in zip(weights, centres, deviations, strict=True)
            )
            / total
        )

    for level, x in zip(levels, found, strict=True):
        margin = 1e-12 * (abs(mpmath.mpf(x)) + max(map(abs, centres)) + min(deviations))
        below, above = probability(x - margin), probability(x + margin)
        good = below * (1 - mpmath.mpf(1e-11)) <= level <= above * (1 + mpmath.mpf(1e-11))
        need(good, f"icdf({level!r}) = {x!r} has probability {mpmath.nstr(probability(x), 12)}")
    low, high = mixture.interval(d.number("coverage", 0.01, 0.999))
    finite([low, high], "interval")
    need(bool(low <= high), "the interval's ends are in the wrong order")


@property_of(350)
def test_conditioning_far_away(d):
    """Weights, means and variances given values at up to 10⁹ σ are those of mpmath."""
    k, dim = d.integer("n_components", 1, 4), d.integer("dimensions", 2, 4)
    logits, means, factors = parameters(d, k, dim, full=d.flag("dense"))
    if d.flag("same scales"):
        factors = factors[:1].expand(k, -1).clone()
    fixed = d.random.sample(range(dim), d.random.randint(1, dim - 1))
    far = d.power("sigmas", 0, 9)
    if d.flag("close means"):
        means = means / far
    values = {i: float(far * d.rng.normal()) for i in fixed}
    if d.flag("low rank", 0.3):
        scales, loadings = -factors[..., :dim], d.normal(k, dim, 2)
        mixture = LowRankMixture(logits, means, scales, loadings)
        full = mixture.to_full()
        exact = Exact(full.logits, full.means, full.factors)
    else:
        mixture = GaussianMixture(logits, means, factors)
        exact = Exact(logits, means, factors)
    got = mixture.condition(values)
    terms = exact.marginal_terms(fixed, [values[i] for i in fixed])
    whole = references.log_sum(terms)
    expected = [float(mpmath.e ** (term - whole)) for term in terms]
    if isinstance(mixture, LowRankMixture):
        # to_full rounds: what is left of the weights is known to that only.
        tolerance = max(1e-9, 1e-14 * far**2)
        if tolerance > 1e-5:
            no_nan(got.weights, "weights")
            return
    near(got.weights, expected, f"weights at {far:.1e} σ", rtol=1e-4, atol=1e-4)
    finite([got.mean, got.variance], "moments of the conditional")


@property_of(300)
def test_log_densities_anywhere(d):
    """log p(x) and its gradient at any finite x: right, or −inf with no gradient."""
    k, dim = d.integer("n_components", 1, 3), d.integer("dimensions", 1, 3)
    dtype = d.choice("dtype", FLOATS)
    logits, means, factors = (p.to(dtype) for p in parameters(d, k, dim, full=True))
    top = 37 if dtype is torch.float32 else 300
    x = (d.normal(dim) * d.power("far", -5, top)).to(dtype).requires_grad_()
    mixture = GaussianMixture(logits, means, factors)
    got = no_nan(mixture.log_prob(x), "log_prob")
    (gradient,) = torch.autograd.grad(got, x)
    no_nan(gradient, "gradient of log_prob")
    mpmath.mp.dps = references.DIGITS
    exact = Exact(logits, means, factors)
    value = exact.marginal_log_prob(list(range(dim)), x.tolist())
    expected = float(value) if abs(value) < mpmath.mpf(float(torch.finfo(dtype).max)) else -math.inf
    if expected < -0.02 * torch.finfo(dtype).max and float(got) == -math.inf:
        return  # the documented end of the dtype
    near(got, expected, "log_prob", rtol=1e-6 if dtype is torch.float32 else 1e-11, atol=1e-6)
    no_nan(mixture.responsibilities(x.detach()), "responsibilities")


# Every question that a mixture answers with numbers.
QUESTIONS = {
    "mean": lambda m, x: m.mean,
    "variance": lambda m, x: m.variance,
    "stddev": lambda m, x: m.stddev,
    "covariance_matrix": lambda m, x: m.covariance_matrix,
    "log_prob": lambda m, x: m.log_prob(x),
    "observed_log_prob": lambda m, x: m.observed_log_prob(x),
    "responsibilities": lambda m, x: m.responsibilities(x),
    "sample": lambda m, x: m.sample((7,)),
    "entropy": lambda m, x: m.entropy(n_samples=50),
    "marginal": lambda m, x: [m.marginal([0]).mean, m.marginal([0]).variance],
    "condition": lambda m, x: [m.condition({0: x[..., 0]}).mean] if m.dimensions > 1 else [],
    "quantile": lambda m, x: m.quantile(torch.tensor([0.01, 0.5, 0.99]), 0),
    "interval": lambda m, x: m.marginal(0).interval(0.8),
    "cdf": lambda m, x: m.marginal(0).cdf(x[..., :1]),
    "crps": lambda m, x: m.marginal(0).crps(x[..., :1]),
    "energy_score": lambda m, x: m.energy_score(x, n_samples=20),
    "hpd_threshold": lambda m, x: m.hpd_threshold(0.5, n_samples=100),
    "modes": lambda m, x: m.modes().points,
    "rosenblatt": lambda m, x: m.rosenblatt(x),
    "hpd_coverage": lambda m, x: m.hpd_coverage(x, n_samples=20),
    "probability": lambda m, x: m.probability(x, x + 1, n_samples=100),
    "affine": lambda m, x: m.affine(2.0, 1.0).mean,
    "project": lambda m, x: m.project(torch.ones(m.dimensions, dtype=m.dtype)).variance,
    "rsample": lambda m, x: m.rsample((3,)),
}  # fmt: skip


def mapped(d, k, dim, scale):
    """Return a transformed mixture and a point in its support."""
    transforms, columns = [], []
    for i in range(dim):
        kind = d.choice(f"map {i}", ["real", "positive", "interval", "integer", "count"])
        low = d.rng.normal() * scale
        transforms.append({"real": Real(), "positive": Positive(float(low)),
                     "interval": Interval(float(low), float(low) + max(scale, abs(low) * 1e-6)),
                     "integer": Integer(), "count": Integer(0)}[kind])  # fmt: skip
        columns.append(transforms[-1].from_real(d.normal(1).clamp(-2, 2)))
    logits, means, factors = parameters(d, k, dim)
    width = d.power("width", -2, 1.5)
    factors[..., :dim] -= math.log(width)
    mixture = TransformedMixture(GaussianMixture(logits, width * means, factors), transforms)
    return mixture, torch.cat(columns).to(torch.float64)


@property_of(700)
def test_no_question_is_answered_with_nan(d):
    """Finite parameters and values: an answer without NaN, or a named error."""
    dtype = d.choice("dtype", FLOATS)
    k, dim = d.integer("n_components", 1, 4), d.integer("dimensions", 1, 4)
    kind = d.choice("kind", ["gaussian", "low rank", "transformed"])
    top = 40 if dtype is torch.float32 else 340
    scale = math.exp(d.number("log of the scale", -top, top) * d.size)
    if kind == "transformed":
        mixture, x = mapped(d, k, dim, min(scale, 1e6))
        mixture, x = mixture.to(dtype), x.to(dtype)
        if not bool(
            torch.stack([m.contains(v) for m, v in zip(mixture.transforms, x, strict=True)]).all()
        ):
            x = mixture.sample()
    else:
        logits, means, factors = parameters(d, k, dim, full=True)
        factors[..., :dim] -= math.log(scale)
        factors[..., dim:] *= min(1 / scale, 1e30)
        means = scale * means
        x = (means[0] + scale * d.normal(dim)).to(dtype)
        if kind == "low rank":
            loadings = scale * d.normal(k, dim, 2)
            mixture = LowRankMixture(*(p.to(dtype) for p in
                                       (logits, means, -factors[..., :dim], loadings)))  # fmt: skip
        else:
            mixture = GaussianMixture(*(p.to(dtype) for p in (logits, means, factors)))
    question = d.choice("question", list(QUESTIONS))
    if not hasattr(mixture, question) and question not in ("quantile",):
        return
    answer = QUESTIONS[question](mixture, x)
    no_nan(answer, f"{question} of a {kind} mixture at scale {scale:.1e}")
    if question in ("variance", "stddev") and len(numbers(answer)):
        need(numbers(answer).min() >= 0, f"{question} is negative")


@property_of(120)
def test_calibrated_intervals_keep_ties(d):
    """On the calibration rows themselves, an interval holds the share it promises."""
    m = d.integer("rows", 3, 150)
    coverage = d.number("coverage", 0.05, 0.95)
    values = d.choice("values", ["two", "few", "whole", "edges", "all different"])
    k = d.integer("n_components", 1, 3)
    logits, means, factors = parameters(d, k, 1, batch=(m,), log_scale=1.0)
    if d.flag("one density"):
        logits, means, factors = (p[:1].expand_as(p).clone() for p in (logits, means, factors))
    mixture = GaussianMixture(logits, d.power("means", -3, 2) * means, factors)
    draws = mixture.sample(generator=d.generator)
    if values == "two":
        target = (draws > 0).double()
    elif values == "few":
        target = draws.round().clamp(-1, 1) * d.power("unit", -3, 3)
    elif values == "whole":
        target = draws.round()
    elif values == "edges":
        target = torch.where(draws > 0, 1e6, -1e6).double()
    else:
        target = draws
    kind = d.choice("map", ["real", "positive", "integer"])
    if kind == "positive":
        mixture, target = TransformedMixture(mixture, [Positive()]), target.clamp(-30, 30).exp()
    elif kind == "integer":
        mixture, target = TransformedMixture(mixture, [Integer()]), target.floor()
    place = math.ceil((m + 1) * coverage - 1e-9)
    region = Calibration.of(mixture, target).region(mixture, coverage)
    inside = (target >= region.lower) & (target <= region.upper)
    need(int(inside.sum()) >= place, f"{int(inside.sum())} of {m} rows inside, {place} promised")
    no_nan([region.lower, region.upper, region.log_threshold], "ends")


@property_of(40)
def test_regions_are_nested(d):
    """A lower coverage gives a smaller region, down to the smallest there is."""
    m = d.integer("rows", 5, 60)
    dim = d.integer("dimensions", 1, 2)
    logits, means, factors = parameters(d, 2, dim, batch=(m,))
    mixture = GaussianMixture(logits, means, factors)
    scores = Calibration.of(mixture, mixture.sample(generator=d.generator))
    some = mixture[:4]
    coverages = sorted([d.power("tiny", -15, -3), d.number("small", 0.01, 0.3),
                        d.number("middle", 0.3, 0.6), d.number("high", 0.6, m / (m + 1))])  # fmt: skip
    regions = []
    for coverage in coverages:
        torch.manual_seed(1)  # the same draws, where regions are found by draws
        regions.append(scores.region(some, coverage))
    for small, large in pairwise(regions):
        told = f"coverage {small.coverage:g} beside {large.coverage:g}"
        need(bool((small.log_threshold >= large.log_threshold).all()), f"regions: {told}")
        inside = (small.lower >= large.lower) & (small.upper <= large.upper)
        need(bool(inside.all()), f"intervals: {told}")


@property_of(250)
def test_columns_of_any_scale(d):
    """Standardised columns have numbers of order one, whatever their scale."""
    n, columns = d.integer("rows", 1, 60), d.integer("columns", 1, 3)
    scale, offset = d.edge("scale", -307, 307.9), d.choice("offset", [0.0, 1.0, -3.0])
    values = ((d.normal(n, columns).clamp(-1.7, 1.7) + offset) * scale).clamp(-1.79e308, 1.79e308)
    if d.flag("outlier", 0.3):
        values[0, 0] = 1.7e308 * d.random.choice([-1, 1])
    need(bool(values.isfinite().all()), "the draw is not finite")
    door = d.choice("door", ["standardiser", "network"])
    if door == "standardiser":
        standard = Standardiser(columns).fit(values)
        finite([standard.location, standard.scale], "location and scale")
        no_nan(standard(values), "standardised")
        if n > 1 and offset == 0.0 and not d.facts["outlier"]:
            need(float(standard(values).abs().max()) < 50, "not standardised")
        return
    network = MixtureNetwork.of(columns, 2, n_components=2, width=4).double()
    target = d.normal(n, 2)
    network.prepare(values, target)
    with torch.no_grad():
        mixture = network(values)
        finite([mixture.mean, mixture.variance], "the network's moments")
        no_nan(network.loss(values, target), "nll")


@property_of(250, refusals=False)
def test_subsets_of_transformed_targets(d):
    """p(a, b) = p(a | b) p(b), for positive, bounded and real targets in any order."""
    dim, k = d.integer("dimensions", 2, 4), d.integer("n_components", 1, 3)
    bounds = d.power("bounds", -3, 4)
    kinds = [Real(), Positive(), Positive(-bounds), Interval(-bounds, 2 * bounds)]
    transforms = [kinds[d.random.randrange(4)] for _ in range(dim)]
    d.note("transforms", transforms)
    base = GaussianMixture(*parameters(d, k, dim, full=True))
    mixture = TransformedMixture(base, transforms)
    y = mixture.sample(generator=d.generator)
    first = d.random.sample(range(dim), d.random.randint(1, dim - 1))
    rest = [i for i in range(dim) if i not in first]
    given = {i: float(y[i]) for i in first}
    whole = mixture.log_prob(y)
    split = mixture.marginal(first).log_prob(y[first]) + mixture.condition(given).log_prob(y[rest])
    near(split, whole, "log p(a) + log p(b | a)", rtol=1e-7, atol=1e-7)
    alone = mixture.marginal(rest[0])
    p = d.number("level", 0.01, 0.99)
    near(alone.cdf(alone.icdf(p)), p, "F(F⁻¹(p))", rtol=1e-6, atol=1e-8)
