"""Problems that are drawn, not measured: what they draw, and the density where it is known.

Every problem has `draw(rows, rng)`, which returns conditions [n, C] and targets [n, D], and, where
the truth has a closed form, `log_prob(condition, target)` [n].
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage, special, stats
from torch.distributions import MultivariateNormal

Array = NDArray[np.float64]
# Millions of simulations for one reference posterior, at most.
MAX_BATCHES = 8


class Problem(Protocol):
    """What can be drawn."""

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return conditions [n, C] and targets [n, D]."""
        ...


# Mixtures.


class JointMixture:
    """A random Gaussian mixture over condition and target together.

    So p(target | condition) is a Gaussian mixture with full covariances whose parameters vary
    smoothly with the condition, exactly.
    """

    def __init__(
        self, seed: int, targets: int = 5, conditions: int = 3, n_components: int = 4
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        columns = conditions + targets

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        root = normal(n_components, columns, columns)
        identity = torch.eye(columns, dtype=torch.float64)
        self.covariances = root @ root.mT / columns + 0.1 * identity
        self.means = 2.0 * normal(n_components, columns)
        self.log_weights = torch.log_softmax(0.5 * normal(n_components), 0)
        self.conditions = conditions

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return conditions and targets."""
        component = rng.choice(len(self.means), size=rows, p=self.log_weights.exp().numpy())
        roots = torch.linalg.cholesky(self.covariances).numpy()[component]
        noise = rng.standard_normal((rows, self.means.shape[1], 1))
        both = self.means.numpy()[component] + (roots @ noise)[..., 0]
        return both[:, : self.conditions], both[:, self.conditions :]

    def log_prob(self, condition: Array, target: Array) -> Array:
        """Return log p(target | condition)."""
        c = self.conditions
        given, both = torch.from_numpy(condition), MultivariateNormal(self.means, self.covariances)
        alone = MultivariateNormal(self.means[:, :c], self.covariances[:, :c, :c])
        joint = both.log_prob(torch.cat([given, torch.from_numpy(target)], 1)[:, None])
        marginal = alone.log_prob(given[:, None])
        weights = self.log_weights
        return ((weights + joint).logsumexp(1) - (weights + marginal).logsumexp(1)).numpy()


# Inverse problems: the condition is what was seen, the target what led to it.

ARM_SCALES = np.array([0.25, 0.5, 0.5, 0.5])


class Arm(NamedTuple):
    """Inverse kinematics: the vertical offset and joint angles that put the hand there.

    x ~ N(0, diag(.25, .5, .5, .5)²): an offset and three angles of an arm with lengths
    .5, .5, 1; y is the end point, seen with noise of standard deviation `noise`. Its evidence rests
    on `2**log2_angles` angles.
    """

    noise: float = 0.0
    log2_angles: int = 22

    @staticmethod
    def forward(x: Array) -> Array:
        """Return the end points [..., 2] without noise."""
        total = x[..., 1:].cumsum(-1)
        lengths = np.array([0.5, 0.5, 1.0])
        up = x[..., 0] + (lengths * np.sin(total)).sum(-1)
        return np.stack([(lengths * np.cos(total)).sum(-1), up], -1)

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return end points [n, 2] and what led to them [n, 4]."""
        x = ARM_SCALES * rng.standard_normal((rows, 4))
        return self.forward(x) + self.noise * rng.standard_normal((rows, 2)), x

    def log_prob(self, y: Array, x: Array) -> Array:
        """Return log p(x | y) by Bayes' rule."""
        prior = stats.norm.logpdf(x, scale=ARM_SCALES).sum(-1)
        likelihood = stats.norm.logpdf(y, self.forward(x), self.noise).sum(-1)
        return prior + likelihood - self.log_evidence(y)

    def log_evidence(self, y: Array) -> Array:
        """Return log p(y).

        E N(y₁; a₁, σ²) N(y₂; a₂, σ² + .25²) over the angles: the offset integrates in closed
        form. A histogram of low-discrepancy angles, blurred by both Gaussians.
        """
        density, low, step = _arm_density(self.noise, self.log2_angles)
        at = ((y - low) / step).T
        # Cubic, in logarithms: linear interpolation would be biased where the density bends.
        return ndimage.map_coordinates(np.log(density), at, order=3, mode="nearest")

    def posterior(self, y: Array, n: int, tolerance: float, rng: Generator) -> Array:
        """Draw [n, 4] from p(x | y) with noise of `tolerance`, by rejection on the angles."""
        # Of the offset there is the prior, then the likelihood: both are Gaussian.
        spread = math.hypot(tolerance, ARM_SCALES[0])
        shrink, deviation = (ARM_SCALES[0] / spread) ** 2, ARM_SCALES[0] * tolerance / spread

        def accept(hand: Array, x: Array) -> Array:
            gap = y - hand
            log_weight = -0.5 * ((gap / [tolerance, spread]) ** 2).sum(-1)
            accepted = np.log(rng.random(len(x))) < log_weight
            x, rest = x[accepted].copy(), gap[accepted, 1]
            x[:, 0] = shrink * rest + deviation * rng.standard_normal(len(x))
            return x

        return _reject(_swung, accept, y[0], n, tolerance, rng)


@cache
def _swung(batch: int) -> tuple[Array, Array]:
    """Return a million end points of arms without offset, from left to right, and the arms."""
    x = np.zeros((1_000_000, 4))
    x[:, 1:] = 0.5 * np.random.default_rng([30, batch]).standard_normal((len(x), 3))
    hand = Arm.forward(x)
    order = hand[:, 0].argsort()
    return hand[order], x[order]


def _reject(
    pool: Callable[[int], tuple[Array, Array]],
    accept: Callable[[Array, Array], Array],
    y: float,
    n: int,
    tolerance: float,
    rng: Generator,
) -> Array:
    """Return n accepted of the simulations whose first number is within 6 tolerances of y."""
    kept: list[Array] = []
    for batch in range(MAX_BATCHES):
        seen, x = pool(batch)
        window = slice(*np.searchsorted(seen[:, 0], [y - 6 * tolerance, y + 6 * tolerance]))
        kept.append(accept(seen[window], x[window]))
        if sum(map(len, kept)) >= n:
            break
    found = np.concatenate(kept)
    if not len(found):
        raise ValueError(f"{MAX_BATCHES} million simulations had none within tolerance of {y:.3g}.")
    # So rare an observation that few are found: each of them stands for several.
    return rng.permutation(found)[:n] if len(found) >= n else rng.choice(found, n)


@cache
def _arm_density(noise: float, log2_angles: int) -> tuple[Array, Array, Array]:
    """Return p(y) on a grid, the grid's first centre, and its steps."""
    uniform = stats.qmc.Sobol(3, seed=0).random_base2(log2_angles)
    angles = 0.5 * special.ndtri(uniform.clip(1e-12, 1 - 1e-12))
    hand = Arm.forward(np.concatenate([np.zeros((len(angles), 1)), angles], 1))
    step = np.array([noise / 20, 0.0125])
    margin = np.array([8 * noise, 8 * math.hypot(noise, 0.25)])
    low = -2.0 - margin
    count = np.ceil((2 * 2.0 + 2 * margin) / step).astype(int)
    cell = ((hand - low) / step).astype(int)
    counts = np.bincount(cell[:, 0] * count[1] + cell[:, 1], minlength=count.prod())
    density = counts.reshape(count) / len(angles) / step.prod()
    # Cells have blurred the points by a variance of step²/12 already.
    widths = np.sqrt(np.array([noise**2, noise**2 + 0.25**2]) - step**2 / 12) / step
    blurred = ndimage.gaussian_filter(density, widths, mode="constant", truncate=8)
    return blurred.clip(min=1e-300), low + 0.5 * step, step


class Ballistics:
    """A thrown ball with drag: position, angle and speed that made it land there.

    x₁ ~ N(0, .5²), x₂ ~ N(1.5, .5²) clipped at 0, angle ~ U(9°, 81°), v₀ ~ Poisson(15);
    y is the abscissa at the last of 1500 times in [0, 6] before the ball passes the ground.
    """

    gravity, drag, mass = 9.81, 0.25, 0.2
    times = np.linspace(0, 6, 1500)

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return where it lands [n, 1] and what led there [n, 4]."""
        start = 0.5 * rng.standard_normal((rows, 2)) + [0.0, 1.5]
        start[:, 1] = start[:, 1].clip(min=0)
        angle = 0.5 * math.pi * (0.1 + 0.8 * rng.random(rows))
        x = np.column_stack([start, angle, rng.poisson(15, rows)]).astype(float)
        return self.forward(x), x

    def position(self, x: Array, t: Array) -> tuple[Array, Array]:
        """Return abscissa and height at times t, which broadcast against x [..., 4]."""
        across, up, angle, speed = np.moveaxis(x, -1, 0)
        g, k, m = self.gravity, self.drag, self.mass
        decay = np.expm1(-k * t / m)
        height = up - m / k**2 * ((g * m + speed * np.sin(angle) * k) * decay + g * t * k)
        return across - speed * np.cos(angle) * m / k * decay, height

    def forward(self, x: Array) -> Array:
        """Return where it lands [..., 1]; NaN if never within the 6 s."""
        g, k, m = self.gravity, self.drag, self.mass
        rising = (x[..., 3] * np.sin(x[..., 2]) * k / (g * m)).clip(min=0)
        low = m / k * np.log1p(rising)  # the time of the peak
        lands = (self.position(x, low)[1] >= 0) & (self.position(x, np.full_like(low, 6.0))[1] < 0)
        high = np.full_like(low, 6.0)
        for _ in range(45):
            middle = 0.5 * (low + high)
            above = self.position(x, middle)[1] >= 0
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        step = self.times[1]
        landed = self.position(x, np.floor(low / step) * step)[0]
        return np.where(lands, landed, np.nan)[..., None]

    def posterior(self, y: Array, n: int, tolerance: float, rng: Generator) -> Array:
        """Draw [n, 4] from p(x | y) with noise of `tolerance`, by rejection."""

        def accept(landed: Array, x: Array) -> Array:
            log_weight = -0.5 * ((landed[:, 0] - y[0]) / tolerance) ** 2
            return x[np.log(rng.random(len(x))) < log_weight]

        return _reject(_thrown, accept, y[0], n, tolerance, rng)


@cache
def _thrown(batch: int) -> tuple[Array, Array]:
    """Return where a million balls land, from left to right, and how they were thrown."""
    landed, x = Ballistics().draw(1_000_000, np.random.default_rng([20, batch]))
    order = landed[:, 0].argsort()
    return landed[order], x[order]


# The tasks of sbibm 1.1.0 (Lueckmann et al. 2021, T.1, T.7 and T.8).


class GaussianLinear:
    """θ ~ N(0, .1 I), x ~ N(θ, .1 I), in ten dimensions: θ | x ~ N(x/2, .05 I)."""

    bounds: tuple[float, float] | None = None

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return observations and parameters."""
        theta = math.sqrt(0.1) * rng.standard_normal((rows, 10))
        return theta + math.sqrt(0.1) * rng.standard_normal((rows, 10)), theta

    def log_prob(self, x: Array, theta: Array) -> Array:
        """Return log p(θ | x)."""
        return stats.norm.logpdf(theta, x / 2, math.sqrt(0.05)).sum(-1)

    def posterior(self, x: Array, n: int, rng: Generator) -> Array:
        """Draw [n, 10] from p(θ | x)."""
        return x / 2 + math.sqrt(0.05) * rng.standard_normal((n, 10))


class GaussianMixture:
    """θ ~ U(−10, 10)², x ~ ½N(θ, I) + ½N(θ, .01 I)."""

    bounds: tuple[float, float] | None = (-10.0, 10.0)

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return observations and parameters."""
        theta = rng.uniform(-10, 10, (rows, 2))
        return theta + self._noise(rows, rng), theta

    def log_prob(self, x: Array, theta: Array) -> Array:
        """Return log p(θ | x): a mixture, cut at the bounds."""
        parts, within = [], []
        for scale in (1.0, 0.1):
            parts.append(stats.norm.logpdf(theta, x, scale).sum(-1))
            ends = stats.norm.cdf((10 - x) / scale) - stats.norm.cdf((-10 - x) / scale)
            # Beyond the bounds the narrow component may have no part inside.
            with np.errstate(divide="ignore"):
                within.append(np.log(ends).sum(-1))
        found = np.logaddexp(*parts) - np.logaddexp(*within)
        return np.where((np.abs(theta) <= 10).all(-1), found, -np.inf)

    def posterior(self, x: Array, n: int, rng: Generator) -> Array:
        """Draw [n, 2] from p(θ | x)."""
        return _inside(lambda count: x - self._noise(count, rng), self.bounds, n)

    def _noise(self, rows: int, rng: Generator) -> Array:
        scale = rng.choice([1.0, 0.1], (rows, 1))
        return scale * rng.standard_normal((rows, 2))


class TwoMoons:
    """θ ~ U(−1, 1)², x = a crescent + (−|θ₁ + θ₂|, −θ₁ + θ₂)/√2: two moons in θ.

    The crescent is (r cos a + .25, r sin a), a ~ U(−π/2, π/2), r ~ N(.1, .01²).
    """

    bounds: tuple[float, float] | None = (-1.0, 1.0)

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return observations and parameters."""
        theta = rng.uniform(-1, 1, (rows, 2))
        across, up = (theta[:, 0] + theta[:, 1], theta[:, 1] - theta[:, 0]) / np.sqrt(2)
        return self._crescent(rows, rng) + np.column_stack([-np.abs(across), up]), theta

    def posterior(self, x: Array, n: int, rng: Generator) -> Array:
        """Draw [n, 2] from p(θ | x): turned crescents on either side, inside the bounds."""

        def propose(count: int) -> Array:
            crescent = self._crescent(count, rng)
            across = rng.choice([-1.0, 1.0], count) * (crescent[:, 0] - x[0])
            up = x[1] - crescent[:, 1]
            return np.column_stack([across - up, across + up]) / np.sqrt(2)

        return _inside(propose, self.bounds, n)

    @staticmethod
    def _crescent(rows: int, rng: Generator) -> Array:
        angle = rng.uniform(-0.5 * np.pi, 0.5 * np.pi, rows)
        radius = 0.1 + 0.01 * rng.standard_normal(rows)
        return np.column_stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)])


def _inside(propose, bounds, n: int) -> Array:
    """Return the first n proposals inside the bounds."""
    kept: list[Array] = []
    while sum(map(len, kept)) < n:
        drawn = propose(2 * n)
        kept.append(drawn[((drawn >= bounds[0]) & (drawn <= bounds[1])).all(1)])
    return np.concatenate(kept)[:n]


# Made tables, each with one known difficulty.


class Noisy:
    """y = f(x) + s(x)·ε with correlated noise ε of unit variance: base of the tables below."""

    columns, targets = 5, 2
    correlation = 0.6
    degrees: float = math.inf  # of freedom of Student's t, whose scale is then one

    def conditions(self, rows: int, rng: Generator) -> Array:
        """Draw conditions [n, C]."""
        return rng.standard_normal((rows, self.columns))

    def mean(self, x: Array) -> Array:
        """Return f(x) [n, 2]."""
        first = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
        return np.column_stack([first, np.tanh(x[:, 3]) - 0.7 * first + 0.3 * x[:, 4]])

    def scale(self, x: Array) -> Array:
        """Return s(x) [n, 1]."""
        return 0.2 * np.exp(0.5 * np.tanh(x[:, :1]))

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return conditions and targets."""
        x = self.conditions(rows, rng)
        noise = rng.standard_normal((rows, self.targets)) @ np.linalg.cholesky(self._shape()).T
        if self.degrees < math.inf:
            noise /= np.sqrt(rng.chisquare(self.degrees, (rows, 1)) / self.degrees)
        return x, self.mean(x) + self.scale(x) * noise

    def log_prob(self, x: Array, y: Array) -> Array:
        """Return log p(y | x)."""
        scale = self.scale(x)
        noise = (y - self.mean(x)) / scale
        centre, shape = np.zeros(self.targets), self._shape()
        if self.degrees < math.inf:
            base = stats.multivariate_t(centre, shape, self.degrees).logpdf(noise)
        else:
            base = stats.multivariate_normal(centre, shape).logpdf(noise)
        return base - self.targets * np.log(scale[:, 0])

    def _shape(self) -> Array:
        off = self.correlation * (1 - np.eye(self.targets))
        return np.eye(self.targets) + off


class Noiseless(Noisy):
    """Nearly deterministic: noise of a thousandth of the targets' spread."""

    def scale(self, x: Array) -> Array:
        """Return .001 for every row."""
        return np.full((len(x), 1), 1e-3)


class HeavyTails(Noisy):
    """Student's t with two degrees of freedom: targets without a variance."""

    degrees = 2.0


class Irrelevant(Noisy):
    """Five columns that matter and fifty that do not."""

    columns = 55


class Steps(Noisy):
    """Thresholds in two columns, far narrower than the columns' spread."""

    def mean(self, x: Array) -> Array:
        """Return a staircase of 12 uneven steps and a switch."""
        heights = np.random.default_rng(7).standard_normal(13)
        stair = heights[np.searchsorted(np.linspace(-2, 2, 12), x[:, 0])]
        switch = np.where(x[:, 1] > 0.3, 1.0, -1.0)
        return np.column_stack([stair, switch * x[:, 2] + 0.5 * stair])


class Surprise(Noisy):
    """Clean training rows; one scored row of fifty is 20 units off (see `contaminate`)."""

    @staticmethod
    def contaminate(y: Array, rng: Generator) -> Array:
        """Return targets with one row of fifty displaced."""
        y = y.copy()
        rows = rng.permutation(len(y))[: max(1, len(y) // 50)]
        y[rows] += 20.0 * rng.choice([-1.0, 1.0], (len(rows), y.shape[1]))
        return y


class TwoBranches(Noisy):
    """Two branches, one above the other, that cross: for many rows."""

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return conditions and targets, of either branch with even odds."""
        x, y = super().draw(rows, rng)
        return x, y + rng.choice([-1.0, 1.0], (rows, 1)) * self._apart(x)

    def log_prob(self, x: Array, y: Array) -> Array:
        """Return log p(y | x)."""
        apart, base = self._apart(x), super().log_prob
        return np.logaddexp(base(x, y - apart), base(x, y + apart)) - math.log(2)

    @staticmethod
    def _apart(x: Array) -> Array:
        return np.column_stack([x[:, 4], np.cos(x[:, 4])])


class Ring:
    """y = r·(cos a, sin a) with r ~ N(1 + x/2, .1²) and any angle a: more modes than components."""

    scale = 0.1

    def conditions(self, rows: int, rng: Generator) -> Array:
        """Draw conditions [n, 1]."""
        return rng.uniform(-1, 1, (rows, 1))

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return conditions and targets [n, 2]."""
        x, angle = self.conditions(rows, rng), rng.uniform(0, 2 * math.pi, rows)
        radius = self._radius(x) + self.scale * rng.standard_normal(rows)
        return x, radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])

    def log_prob(self, x: Array, y: Array) -> Array:
        """Return log p(y | x): of ±|y| along a ray, over the circle."""
        length, radius = np.hypot(*y.T), self._radius(x)
        either = np.logaddexp(
            *(-0.5 * ((sign * length - radius) / self.scale) ** 2 for sign in (-1, 1))
        )
        return either - np.log(2 * math.pi * length * self.scale * math.sqrt(2 * math.pi))

    @staticmethod
    def _radius(x: Array) -> Array:
        return 1 + 0.5 * x[:, 0]


class Bounded:
    """y ~ N((c, 1 − c), .15² I) cut to the unit square; c ~ U(0, 1) reaches both bounds."""

    bounds = (0.0, 1.0)
    scale = 0.15

    def draw(self, rows: int, rng: Generator) -> tuple[Array, Array]:
        """Return conditions [n, 1] and targets [n, 2]."""
        x = rng.uniform(0, 1, (rows, 1))
        low, high, centre = self._ends(x)
        uniform = low + (high - low) * rng.random((rows, 2))
        return x, centre + self.scale * special.ndtri(uniform)

    def log_prob(self, x: Array, y: Array) -> Array:
        """Return log p(y | x)."""
        low, high, centre = self._ends(x)
        inside = ((y >= 0) & (y <= 1)).all(-1)
        density = stats.norm.logpdf(y, centre, self.scale) - np.log(high - low)
        return np.where(inside, density.sum(-1), -np.inf)

    def _ends(self, x: Array) -> tuple[Array, Array, Array]:
        centre = np.concatenate([x, 1 - x], -1)
        return special.ndtr(-centre / self.scale), special.ndtr((1 - centre) / self.scale), centre
