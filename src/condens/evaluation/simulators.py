"""Posteriors of simulators, judged by parameters whose simulations they are asked about.

Parameters drawn from the prior and simulated are draws from the posterior of their simulation. So
among draws of a right posterior each has a uniform rank, by any quantity: by its value
(simulation-based calibration, Talts et al. 2018), by its density (expected coverage of
highest-density regions, Deistler et al. 2022), by its distance from a point (TARP, Lemos et al.
2023).
"""

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from condens.data import TableLike, TargetColumns
from condens.data.arrays import Doubles, as_doubles
from condens.data.frames import is_frame
from condens.data.table import in_order
from condens.distributions import Mixture
from condens.distributions.arviz import to_tree
from condens.distributions.dimensions import check_names
from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError
from condens.evaluation.calibration import (
    MIN_UNITS,
    Coverage,
    Test,
    adjust,
    coverage_table,
    uniformity_tests,
)
from condens.evaluation.forecasts import Forecast
from condens.evaluation.models import Words, forecasts_of
from condens.evaluation.statistics import Score, weighted_mean
from condens.nn.randomness import seeded_generator, torch_seeded_by
from condens.progress import Progress
from condens.scalars import as_function, as_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from xarray import DataTree

# From parameters [S, b, D] and the b observations they are asked about to numbers [S, b].
Quantity = Callable[[Tensor, Any], Tensor]

# Numbers of draws held at a time.
NUMBERS_PER_BLOCK = 1_000_000
WORDS = Words("posterior", "observations", "parameters")


@dataclass(frozen=True, eq=False)
class SBC:
    """Ranks of true parameters among draws of their posteriors; see `sbc`.

    Too narrow posteriors have too many ranks at both ends, too wide ones too many in the middle,
    and biased ones more on one side.

    Args:
        names: of the P quantities: the parameters, then the functions.
        ranks: [n, P], whole numbers from 0 to n_samples; uniform if the posteriors are right.
        uniform: [n, P], (rank + noise)/(n_samples + 1): the same as real numbers in (0, 1).
        n_samples: how many draws each was ranked among.
    """

    names: tuple[str, ...]
    ranks: NDArray[np.int64]
    uniform: Doubles
    n_samples: int

    @cached_property
    def tests(self) -> tuple[Test, ...]:
        """Tests of bias, spread and shape for each quantity, corrected for their number.

        See `condens.evaluation.calibration.uniformity_tests`.
        """
        columns = zip(self.names, self.uniform.T, strict=True)
        return adjust(test for name, u in columns for test in uniformity_tests(u, subject=name))

    def plot(self, figure: "Figure | SubFigure | None" = None) -> "Figure | SubFigure":
        """Draw a histogram of the ranks of each quantity, with the band of right posteriors.

        On a new figure of pyplot by default. Needs the extra `plot`.
        """
        from condens.plots.calibration import rank_histogram
        from condens.plots.style import figure_or_new

        columns = min(len(self.names), 3)
        rows = math.ceil(len(self.names) / columns)
        figure = figure_or_new(figure, 4.2 * columns, 3.2 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for panel, name, ranks in zip(panels, self.names, self.ranks.T, strict=False):
            rank_histogram(ranks, self.n_samples, name=name, axes=panel)
        for panel in panels[len(self.names) :]:
            panel.set_visible(False)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return ranks and tests as plain values; of fewer than eight rows there are no tests."""
        return {
            "n_samples": self.n_samples,
            "ranks": dict(zip(self.names, self.ranks.T.tolist(), strict=True)),
            "tests": _plain_tests(self),
        }

    def to_arviz(self) -> "DataTree":
        """Return the numbers that should be uniform as ArviZ's `prior_sbc`, by their names.

        `arviz_plots.plot_ecdf_pit` draws them. Needs the extra `arviz`. Shapes: [1, n] each, with
        the axes chain and draw; the group `ranks` has the ranks likewise.
        """
        return to_tree(
            {"prior_sbc": self.uniform[None], "ranks": self.ranks[None]},
            self.names,
            attributes={"n_samples": self.n_samples},
        )


@dataclass(frozen=True, eq=False)
class CoverageCurve:
    """How often regions of posteriors hold the true parameters; see `expected_coverage`, `tarp`.

    Args:
        needed: [n], the coverage of the region whose edge runs through the truth; uniform in
            (0, 1) if the posteriors are right.
        ranks: [n], how many of n_samples draws lie inside of it.
        n_samples: how many draws each was ranked among.
    """

    needed: Doubles
    ranks: NDArray[np.int64]
    n_samples: int

    def at(self, coverages: Sequence[float] = (0.5, 0.8, 0.9, 0.95)) -> tuple[Coverage, ...]:
        """Return the fraction of truths inside the regions of each coverage, with its bounds."""
        return coverage_table(self.needed, coverages, subject="joint")

    @cached_property
    def area(self) -> float:
        """The area between curve and diagonal over coverages above one half.

        ∫ (observed − stated) dc from ½ to 1, which TARP calls ATC: below zero where posteriors
        are too narrow or biased, above where they are too wide.
        """
        return float((1 - self.needed.clip(min=0.5)).mean() - 0.375)

    @cached_property
    def tests(self) -> tuple[Test, ...]:
        """Tests of bias, spread and shape of the needed coverages, corrected for their number.

        Above zero, `bias` says that posteriors are too narrow. See
        `condens.evaluation.calibration.uniformity_tests`.
        """
        return adjust(uniformity_tests(self.needed, subject="joint"))

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw the fraction of truths inside regions of each coverage.

        On a new figure of pyplot by default. Needs the extra `plot`.
        """
        from condens.plots.calibration import coverage_curve

        return coverage_curve(self.needed, axes=axes)

    def to_dict(self) -> dict[str, Any]:
        """Return ranks, area, coverages and tests as plain values."""
        return {
            "n_samples": self.n_samples,
            "ranks": self.ranks.tolist(),
            "area": self.area,
            "coverages": [found.to_dict() for found in self.at()],
            "tests": _plain_tests(self),
        }


@dataclass(frozen=True, eq=False)
class PredictiveDistance:
    """Distances between an observation and simulations of it; see `predictive_distance`.

    Args:
        distances: of the simulations that were finite [S − n_failed].
        n_failed: simulations with a number that is NaN or infinite.
    """

    distances: Doubles
    n_failed: int

    @property
    def median(self) -> float:
        """The median distance, the measure of sbibm."""
        return float(np.median(self.distances))

    @property
    def mean(self) -> Score:
        """The mean distance, with its standard error."""
        return weighted_mean(self.distances)


def sbc(
    posterior: Any,
    parameters: TableLike,
    observations: TableLike | None = None,
    *,
    functions: Mapping[str, Quantity] | None = None,
    n_samples: int = 199,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> SBC:
    """Rank true parameters among draws of their posteriors: simulation-based calibration.

    Args:
        posterior: from `condens.inference`, a network, an `MDNRegressor`, one of sbi's, a batch
            of n mixtures or torch distributions, or independent draws [S, n, D], all of which
            are taken (thin those of a Markov chain).
        parameters: [n, D], drawn from the prior.
        observations: [n, …], simulated with these; None with mixtures and draws.
        functions: further quantities by their names, of parameters [S, b, D] and the b
            observations → [S, b]. Some errors show in these alone: a posterior that is the
            prior has uniform ranks of every parameter, but not of the log-likelihood (Modrák
            et al. 2023).
        n_samples: how many draws to rank each among.
        names: of the parameters, if neither they nor the posterior have names.
        seed: of the draws.
        progress: show a line; by default where stderr is a terminal.

    >>> from condens import GaussianMixture
    >>> theta = torch.randn(100, 1, generator=Generator().manual_seed(0))
    >>> prior = GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1))
    >>> found = sbc(prior.expand([100]), theta, functions={"square": lambda a, x: a[..., 0] ** 2})
    >>> found.ranks.shape, found.names
    ((100, 2), ('parameter_0', 'square'))
    """
    truth = _Truth.of(posterior, parameters, observations, n_samples, names, seed, progress)
    quantities = _check_functions(functions)
    ranks, uniform, count = truth.ranked(
        lambda some, block: torch.stack(
            [*some.unbind(-1), *(block.ask(name, f, some) for name, f in quantities.items())], -1
        )
    )
    labels = check_names([*truth.labels, *quantities], ranks.shape[1])
    assert labels is not None
    return SBC(labels, ranks, uniform, count)


def expected_coverage(
    posterior: Any,
    parameters: TableLike,
    observations: TableLike | None = None,
    *,
    log_prob: Quantity | None = None,
    n_samples: int = 199,
    seed: int = 0,
    progress: bool | None = None,
) -> CoverageCurve:
    """Return how often highest-density regions of posteriors hold the true parameters.

    Args:
        posterior, parameters, observations, n_samples, seed, progress: as in `sbc`.
        log_prob: the log density of parameters [S, b, D] given the b observations → [S, b], up
            to a constant for each observation; needed for draws, which have none.

    >>> from condens import GaussianMixture
    >>> theta = torch.randn(1000, 2, generator=Generator().manual_seed(0))
    >>> narrow = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.ones(1, 3))
    >>> expected_coverage(narrow.expand([1000]), theta).at([0.9])[0].observed < 0.5
    True
    """
    truth = _Truth.of(posterior, parameters, observations, n_samples, None, seed, progress)
    if log_prob is not None:
        as_function("log_prob", log_prob, fix="Pass parameters and observations → log densities.")
    # By the lack of density: inside are the draws of a higher one.
    ranks, uniform, count = truth.ranked(
        lambda some, block: -block.ask("log_prob", log_prob or block.log_prob, some).unsqueeze(-1)
    )
    return CoverageCurve(uniform[:, 0], ranks[:, 0], count)


def tarp(
    posterior: Any,
    parameters: TableLike,
    observations: TableLike | None = None,
    *,
    references: TableLike | Callable[[Any], Tensor] | None = None,
    n_samples: int = 199,
    seed: int = 0,
    progress: bool | None = None,
) -> CoverageCurve:
    """Return how often balls around random points hold the true parameters (TARP).

    The ball around a reference point that has the true parameters on its edge holds a uniform
    part of a right posterior. Needs draws alone, and no density. Parameters are scaled to the
    range of the true ones.

    Args:
        posterior, parameters, observations, n_samples, seed, progress: as in `sbc`.
        references: [n, D], or a function of some b observations → [b, D]; by default uniform
            over the range of the parameters. Points that do not depend on the observation
            cannot tell a posterior that is the prior from a right one.

    >>> from condens import GaussianMixture
    >>> theta = torch.randn(1000, 2, generator=Generator().manual_seed(0))
    >>> narrow = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.ones(1, 3))
    >>> tarp(narrow.expand([1000]), theta).area < -0.05
    True
    """
    truth = _Truth.of(posterior, parameters, observations, n_samples, None, seed, progress)
    values = truth.parameters
    low = values.amin(0)
    width = values.amax(0) - low
    # A constant parameter has no range to scale to.
    width = torch.where(width > 0, width, 1.0)
    points: Tensor | None = None
    if references is None:
        points = low + width * torch.rand(
            values.shape, generator=truth.generator, dtype=torch.float64
        )
    elif not callable(references):
        points = _check_references(
            TargetColumns.of(references, "references").values, tuple(values.shape)
        )

    def distances(some: Tensor, block: "_Block") -> Tensor:
        if points is not None:
            around = points[block.rows]
        else:
            assert callable(references)
            given = as_doubles(references(block.observations), "references(…)")
            around = torch.from_numpy(given)
            around = _check_references(around, tuple(some.shape[1:]))
        return ((some - around) / width).norm(dim=-1, keepdim=True)

    ranks, uniform, count = truth.ranked(distances)
    return CoverageCurve(uniform[:, 0], ranks[:, 0], count)


def predictive_distance(
    posterior: Any,
    simulator: Callable[[Tensor], Any],
    observation: TableLike,
    *,
    n_samples: int = 1000,
    distance: Callable[[Tensor, Tensor], Tensor] | None = None,
    seed: int = 0,
) -> PredictiveDistance:
    """Return how far simulations with draws of a posterior are from the observation.

    Args:
        posterior: as in `sbc`, of this observation; a mixture without batch axes, or draws
            [S, D].
        simulator: from parameters [S, D] to simulations [S, …].
        observation: of the shape of one simulation.
        n_samples: how many parameters to draw.
        distance: from simulations [S, …] and the observation to [S]; by default Euclidean.
        seed: of the draws, and of torch's generator while the simulator runs.

    >>> from condens import GaussianMixture
    >>> density = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
    >>> found = predictive_distance(density, lambda theta: theta + 3, [3.0, 3.0])
    >>> 1.1 < found.median < 1.3  # near √(2 log 2)
    True
    """
    count = as_whole("n_samples", n_samples, 2, fix="Pass 1000, for instance.")
    as_function("simulator", simulator, fix="Pass parameters [S, D] → simulations [S, …].")
    if distance is not None:
        as_function("distance", distance, fix="Pass simulations and the observation → [S].")
    generator = seeded_generator(seed)
    seen, asked = _read_one(observation)
    if not bool(seen.isfinite().all()):
        raise NotFiniteError(
            "observation",
            got="has an entry that is NaN or infinite",
            expected="distances from it are asked for",
            fix="Leave the entry out, of the simulations too.",
        )
    if not isinstance(posterior, Mixture) and len(np.shape(posterior)) == 2:
        posterior = torch.from_numpy(as_doubles(posterior, "posterior")).unsqueeze(1)
    _, ask, _, _ = forecasts_of(posterior, asked, 1, WORDS)
    draws = ask(torch.arange(1)).sample(count, generator)[:, 0]
    with torch_seeded_by(generator):
        simulated = torch.from_numpy(as_doubles(simulator(draws), "simulator(…)"))
    if simulated.shape != (len(draws), *seen.shape):
        raise ShapeError(
            "simulator(…)",
            got=f"has shape {list(simulated.shape)}",
            expected=f"{[len(draws), *seen.shape]} was expected",
            fix="Return a simulation for each row, of the shape of the observation.",
        )
    fine = simulated.reshape(len(draws), -1).isfinite().all(1)
    n_failed = int((~fine).sum())
    if len(fine) - n_failed < 2:
        raise NotFiniteError(
            "simulator(…)",
            got=f"is NaN or infinite in {n_failed} of {len(fine)} simulations",
            expected="distances need at least two finite ones",
            fix="Check the simulator at draws of the posterior.",
        )
    return PredictiveDistance(_distances(simulated[fine], seen, distance).numpy(), n_failed)


def _distances(
    simulated: Tensor, seen: Tensor, distance: Callable[[Tensor, Tensor], Tensor] | None
) -> Tensor:
    """Return the distances [S] of simulations from an observation, checked."""
    if distance is None:
        return (simulated - seen).reshape(len(simulated), -1).norm(dim=1)
    gaps = torch.from_numpy(as_doubles(distance(simulated, seen), "distance(…)"))
    if gaps.shape != (len(simulated),):
        raise ShapeError(
            "distance(…)",
            got=f"has shape {list(gaps.shape)}",
            expected=f"[{len(simulated)}] was expected",
            fix="Return a number for each simulation.",
        )
    if bool(gaps.isnan().any()):
        raise NotFiniteError(
            "distance(…)",
            got="is NaN",
            expected="a distance of every simulation was expected",
            fix="Return inf for what is out of reach.",
        )
    return gaps


def _read_one(observation: Any) -> tuple[Tensor, Any]:
    """Return an observation as numbers, and as a table of one row that keeps its names."""
    if hasattr(type(observation), "iloc") and not is_frame(observation):
        observation = observation.to_frame().T  # a row of a pandas frame
    if not is_frame(observation):
        seen = torch.from_numpy(as_doubles(observation, "observation"))
        return seen, seen.unsqueeze(0)
    values = TargetColumns.of(observation, "observation", observed=False).values
    if len(values) != 1:
        raise ShapeError(
            "observation",
            got=f"has {len(values)} rows",
            expected="one was expected",
            fix="Pass one row of the frame.",
        )
    return values[0], observation


def _plain_tests(found: SBC | CoverageCurve) -> list[dict[str, Any]]:
    return [test.to_dict() for test in (found.tests if len(found.ranks) >= MIN_UNITS else ())]


# True parameters and their posteriors, some observations at a time.


@dataclass(frozen=True, eq=False)
class _Block:
    """Draws [S, b, D] of the posteriors of some observations."""

    rows: Tensor
    observations: Any
    forecast: Forecast
    draws: Tensor

    def log_prob(self, some: Tensor, _: Any) -> Tensor:
        """Return the log density [S, b] of parameters, up to a constant for each observation."""
        found = self.forecast.relative_log_prob_at(some)
        if found is None:
            raise ArgumentError(
                "posterior",
                got="has no density",
                expected="highest-density regions need one",
                fix="Pass log_prob=…, or use tarp(…), which needs none.",
            )
        return found

    def ask(self, name: str, quantity: Quantity, some: Tensor) -> Tensor:
        """Return a quantity of parameters [S, b, D], checked."""
        found = torch.from_numpy(as_doubles(quantity(some, self.observations), f"{name}(…)"))
        if found.shape != some.shape[:-1]:
            raise ShapeError(
                f"{name}(…)",
                got=f"has shape {list(found.shape)} of parameters {list(some.shape)}",
                expected=f"{list(some.shape[:-1])} was expected",
                fix="Return a number for each draw and observation.",
            )
        if bool(found.isnan().any()):
            raise NotFiniteError(
                f"{name}(…)",
                got="is NaN",
                expected="numbers are ranked",
                fix="Return −inf or inf where there is no value.",
            )
        return found


@dataclass(frozen=True, eq=False)
class _Truth:
    """True parameters [n, D], and the posteriors they are ranked in."""

    parameters: Tensor
    labels: tuple[str, ...]
    generator: Generator
    blocks: Iterator[_Block]
    progress: bool | None

    @classmethod
    def of(
        cls,
        posterior: Any,
        parameters: TableLike,
        observations: Any,
        n_samples: int,
        names: Sequence[str] | None,
        seed: int,
        progress: bool | None,
    ) -> "_Truth":
        given = TargetColumns.of(parameters, "parameters")
        values = given.values
        if not bool(values.isfinite().all()):
            raise NotFiniteError(
                "parameters",
                got=f"is NaN in row {int(values.isnan().any(1).nonzero()[0])}",
                expected="every true parameter is known",
                fix="Pass those that were simulated with.",
            )
        count = as_whole("n_samples", n_samples, 1, fix="Pass 199, for instance.")
        generator = seeded_generator(seed)
        _, ask, theirs, whole = forecasts_of(posterior, observations, len(values), WORDS)
        size = ask(torch.arange(1)).dimensions
        if size != values.shape[1]:
            raise ShapeError(
                "parameters",
                got=f"has {values.shape[1]} columns",
                expected=f"the posterior is over {size}",
                fix="Pass a column for each parameter of the posterior.",
            )
        values = in_order(
            values,
            given.names,
            theirs,
            "parameters",
            expected=f"the posterior is over {', '.join(theirs or ())}",
            fix="Pass just these.",
        )
        labels = theirs or given.names or check_names(names, size)
        labels = labels or tuple(f"parameter_{d}" for d in range(size))
        seen = _rows_of(observations, len(values))

        def blocks() -> Iterator[_Block]:
            some = len(values) if whole else max(1, NUMBERS_PER_BLOCK // (count * size))
            for rows in torch.arange(len(values)).split(some):
                forecast = ask(rows)
                yield _Block(rows, seen(rows), forecast, forecast.sample(count, generator))

        return cls(values, labels, generator, blocks(), progress)

    @torch.no_grad()
    def ranked(
        self, quantities: Callable[[Tensor, _Block], Tensor]
    ) -> tuple[NDArray[np.int64], Doubles, int]:
        """Rank the truth by quantities [S, b, P] of parameters [S, b, D]; ties at random.

        Returns the ranks [n, P], with noise as uniform numbers [n, P], and the number of draws.
        """
        ranks, places, count = [], [], 0
        with Progress("ranking", len(self.parameters), show=self.progress) as progress:
            for block in self.blocks:
                count = len(block.draws)
                drawn = quantities(block.draws, block)
                true = quantities(self.parameters[block.rows].unsqueeze(0), block)
                below, equal = (drawn < true).sum(0), (drawn == true).sum(0)
                noise = torch.rand(2, *below.shape, generator=self.generator, dtype=torch.float64)
                # The noise is below one, but its product may be rounded up.
                rank = below + torch.minimum((noise[0] * (equal + 1)).long(), equal)
                ranks.append(rank)
                places.append((rank + noise[1]) / (count + 1))
                progress.advance(len(rank))
        return torch.cat(ranks).numpy(), torch.cat(places).numpy(), count


def _rows_of(observations: Any, n_rows: int) -> Callable[[Tensor], Any]:
    """Return how to take some observations, as a tensor or as a part of a frame."""
    if observations is None:
        return lambda _: None
    table = observations
    if not is_frame(table):
        table = torch.from_numpy(as_doubles(table, "observations"))
    if not len(np.shape(table)) or len(table) != n_rows:
        raise ShapeError(
            "observations",
            got=f"has shape {list(np.shape(table))}",
            expected=f"there are {n_rows} rows of parameters",
            fix="Pass one for each row of the parameters.",
        )
    if isinstance(table, Tensor):
        return lambda rows: table[rows]
    if hasattr(type(table), "take"):  # pandas and pyarrow
        return lambda rows: table.take(rows.tolist())
    taken: Any = table  # polars takes rows by the brackets
    return lambda rows: taken[rows.tolist()]


def _check_references(points: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(points.shape) != shape or not bool(points.isfinite().all()):
        raise ShapeError(
            "references",
            got=f"has shape {list(points.shape)}"
            if tuple(points.shape) != shape
            else "has an entry that is NaN or infinite",
            expected=f"{list(shape)} was expected",
            fix="Pass a point for each row of the parameters.",
        )
    return points


def _check_functions(functions: Mapping[str, Quantity] | None) -> dict[str, Quantity]:
    fix = "Pass {name: function}, with parameters [S, b, D] and observations → [S, b]."
    if functions is not None and not isinstance(functions, Mapping):
        got = f"is {reprlib.repr(functions)}"
        raise KindError("functions", got=got, expected="functions by name were expected", fix=fix)
    return {
        name: as_function(f"functions[{name!r}]", function, fix=fix)
        for name, function in (functions or {}).items()
    }
