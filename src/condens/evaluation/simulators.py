"""Posteriors of simulators, judged by parameters whose simulations they are asked about.

Parameters drawn from the prior and simulated are draws from the posterior of their simulation. So
among draws of a right posterior each has a uniform rank, by any quantity: by its value
(simulation-based calibration, Talts et al. 2018), by its density (expected coverage of
highest-density regions, Deistler et al. 2022), by its distance from a point (TARP, Lemos et al.
2023).
"""

import math
import warnings
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
    Coverage,
    Test,
    adjust,
    coverage_table,
    uniformity_tests,
)
from condens.evaluation.forecasts import MixtureForecast
from condens.evaluation.statistics import Score
from condens.nn import DensityNetwork
from condens.progress import Progress
from condens.scalars import as_whole

if TYPE_CHECKING:
    from xarray import DataTree

# From parameters [S, b, D] and the b observations they are asked about to numbers [S, b].
Quantity = Callable[[Tensor, Any], Tensor]

# Numbers of draws held at a time.
NUMBERS_PER_BLOCK = 1_000_000


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

    def to_dict(self) -> dict[str, Any]:
        """Return ranks and tests as plain values."""
        return {
            "n_samples": self.n_samples,
            "ranks": dict(zip(self.names, self.ranks.T.tolist(), strict=True)),
            "tests": [test.to_dict() for test in self.tests],
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

    def to_dict(self) -> dict[str, Any]:
        """Return ranks, area, coverages and tests as plain values."""
        return {
            "n_samples": self.n_samples,
            "ranks": self.ranks.tolist(),
            "area": self.area,
            "coverages": [found.to_dict() for found in self.at()],
            "tests": [test.to_dict() for test in self.tests],
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
        error = self.distances.std(ddof=1) / math.sqrt(len(self.distances))
        return Score(float(self.distances.mean()), float(error))


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
            of n mixtures, or independent draws [S, n, D] (thin those of a Markov chain).
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
    ranks, uniform = truth.ranked(
        lambda some, block: torch.stack(
            [*some.unbind(-1), *(block.ask(name, f, some) for name, f in quantities.items())], -1
        )
    )
    labels = check_names([*truth.labels, *quantities], ranks.shape[1])
    assert labels is not None
    return SBC(labels, ranks, uniform, truth.n_samples)


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
    # By the lack of density: inside are the draws of a higher one.
    ranks, uniform = truth.ranked(
        lambda some, block: -block.ask("log_prob", log_prob or block.log_prob, some).unsqueeze(-1)
    )
    return CoverageCurve(uniform[:, 0], ranks[:, 0], truth.n_samples)


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
            around = torch.as_tensor(references(block.observations), dtype=torch.float64)
            around = _check_references(around, tuple(some.shape[1:]))
        return ((some - around) / width).norm(dim=-1, keepdim=True)

    ranks, uniform = truth.ranked(distances)
    return CoverageCurve(uniform[:, 0], ranks[:, 0], truth.n_samples)


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
    seed = _check_seed(seed)
    seen, asked = _read_one(observation)
    if not bool(seen.isfinite().all()):
        raise NotFiniteError(
            "observation",
            got="has an entry that is NaN or infinite",
            expected="distances from it are asked for",
            fix="Leave the entry out, of the simulations too.",
        )
    if isinstance(posterior, Mixture) and not posterior.batch_shape:
        posterior = posterior.expand([1])
    elif _is_draws(posterior) and len(np.shape(posterior)) == 2:
        posterior = torch.from_numpy(as_doubles(posterior, "posterior")).unsqueeze(1)
    block = next(_blocks(posterior, asked, 1, count, Generator().manual_seed(seed)))
    if block.draws.shape[1] != 1:
        raise ShapeError(
            "posterior",
            got=f"is of {block.draws.shape[1]} observations",
            expected="one was expected",
            fix="Pick one of them, such as by posterior[0].",
        )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        simulated = torch.from_numpy(as_doubles(simulator(block.draws[:, 0]), "simulator(…)"))
    if simulated.shape != (len(block.draws), *seen.shape):
        raise ShapeError(
            "simulator(…)",
            got=f"has shape {list(simulated.shape)}",
            expected=f"{[len(block.draws), *seen.shape]} was expected",
            fix="Return a simulation for each row, of the shape of the observation.",
        )
    fine = simulated.flatten(1).isfinite().all(1)
    n_failed = int((~fine).sum())
    if len(fine) - n_failed < 2:
        raise NotFiniteError(
            "simulator(…)",
            got=f"is NaN or infinite in {n_failed} of {len(fine)} simulations",
            expected="distances need at least two finite ones",
            fix="Check the simulator at draws of the posterior.",
        )
    gaps = (
        (simulated[fine] - seen).flatten(1).norm(dim=1)
        if distance is None
        else torch.as_tensor(distance(simulated[fine], seen), dtype=torch.float64)
    )
    if gaps.shape != (len(fine) - n_failed,):
        raise ShapeError(
            "distance(…)",
            got=f"has shape {list(gaps.shape)}",
            expected=f"[{len(fine) - n_failed}] was expected",
            fix="Return a number for each simulation.",
        )
    return PredictiveDistance(gaps.numpy(), n_failed)


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


# Posteriors of every kind, some observations at a time.


@dataclass(frozen=True, eq=False)
class _Block:
    """Draws [S, b, D] of the posteriors of some observations."""

    rows: slice
    observations: Any
    draws: Tensor
    names: tuple[str, ...] | None
    log_prob: Quantity

    def ask(self, name: str, quantity: Quantity, some: Tensor) -> Tensor:
        """Return a quantity of parameters [S, b, D], checked."""
        found = torch.as_tensor(quantity(some, self.observations)).double()
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
    n_samples: int
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
        values, theirs = given.values, given.names
        if not bool(values.isfinite().all()):
            raise NotFiniteError(
                "parameters",
                got=f"is NaN in row {int(values.isnan().any(1).nonzero()[0])}",
                expected="every true parameter is known",
                fix="Pass those that were simulated with.",
            )
        count = as_whole("n_samples", n_samples, 1, fix="Pass 199, for instance.")
        generator = Generator().manual_seed(_check_seed(seed))
        blocks = _blocks(posterior, observations, len(values), count, generator)
        first = next(blocks)
        if first.draws.shape[-1] != values.shape[1]:
            raise ShapeError(
                "parameters",
                got=f"has {values.shape[1]} columns",
                expected=f"the posterior is over {first.draws.shape[-1]}",
                fix="Pass a column for each parameter of the posterior.",
            )
        values = in_order(
            values,
            theirs,
            first.names,
            "parameters",
            expected=f"the posterior is over {', '.join(first.names or ())}",
            fix="Pass just these.",
        )
        labels = first.names or theirs or check_names(names, values.shape[1])
        labels = labels or tuple(f"parameter_{d}" for d in range(values.shape[1]))

        def all_blocks() -> Iterator[_Block]:
            yield first
            yield from blocks

        return cls(values, labels, generator, len(first.draws), all_blocks(), progress)

    @torch.no_grad()
    def ranked(
        self, quantities: Callable[[Tensor, _Block], Tensor]
    ) -> tuple[NDArray[np.int64], Doubles]:
        """Rank the truth by quantities [S, b, P] of parameters [S, b, D]; ties at random.

        Returns the ranks [n, P], and with noise as uniform numbers [n, P].
        """
        ranks, places = [], []
        with Progress("ranking", len(self.parameters), show=self.progress) as progress:
            for block in self.blocks:
                drawn = quantities(block.draws.double(), block)
                true = quantities(self.parameters[block.rows].unsqueeze(0), block)
                below, equal = (drawn < true).sum(0), (drawn == true).sum(0)
                noise = torch.rand(2, *below.shape, generator=self.generator, dtype=torch.float64)
                # The noise is below one, but its product may be rounded up.
                rank = below + torch.minimum((noise[0] * (equal + 1)).long(), equal)
                ranks.append(rank)
                places.append((rank + noise[1]) / (self.n_samples + 1))
                progress.advance(len(rank))
        return torch.cat(ranks).numpy(), torch.cat(places).numpy()


def _blocks(
    posterior: Any, observations: Any, n_rows: int, n_samples: int, generator: Generator
) -> Iterator[_Block]:
    """Yield draws for some observations at a time, from whatever kind of posterior."""
    if _is_draws(posterior):
        yield from _blocks_of_draws(posterior, observations, n_rows)
        return
    ask = _mixtures(posterior, observations, n_rows)
    if ask is None:
        yield from _blocks_of_sbi(posterior, observations, n_rows, n_samples, generator)
        return
    for rows, some in _split(observations, n_rows, n_samples):
        with torch.no_grad():
            mixture = ask(rows, some)
            if not isinstance(mixture, Mixture):
                raise _unknown(posterior)
            forecast = MixtureForecast(mixture.to(device="cpu", dtype=torch.float64))
            draws = forecast.sample(n_samples, generator)
        yield _Block(rows, some, draws, mixture.names, _density(forecast))


def _mixtures(
    posterior: Any, observations: Any, n_rows: int
) -> Callable[[slice, Any], object] | None:
    """Return how to get mixtures for some observations; None where a posterior has none."""
    if isinstance(posterior, Mixture):
        _check_rows("posterior", posterior.batch_shape, n_rows)
        return lambda rows, _: posterior[rows]
    if observations is None:
        raise ArgumentError(
            "observations",
            got="is missing",
            expected=f"a {type(posterior).__name__} is asked about each of them",
            fix="Pass those that were simulated with the parameters.",
        )
    for method in ("given", "predict_dist", "mixture"):
        asked = getattr(posterior, method, None)
        if callable(asked):
            return lambda _, some: asked(some)
    if isinstance(posterior, DensityNetwork):
        return lambda _, some: _predict(posterior, some)
    return None


def _predict(network: DensityNetwork, observations: Any) -> Mixture:
    """Return the mixtures of a network without dropout, and leave it as it was."""
    training = network.training
    try:
        return network.eval()(_numbers(observations))
    finally:
        network.train(training)


def _density(forecast: MixtureForecast) -> Quantity:
    return lambda some, _: forecast.log_prob_at(some)


def _blocks_of_draws(posterior: Any, observations: Any, n_rows: int) -> Iterator[_Block]:
    draws = posterior if isinstance(posterior, Tensor) else as_doubles(posterior, "posterior")
    if len(draws.shape) != 3 or not all(draws.shape):
        raise ShapeError(
            "posterior",
            got=f"has shape {list(draws.shape)}",
            expected="draws [S, n, D] were expected",
            fix="Put the draws first, then the observations, then the parameters.",
        )
    _check_rows("posterior", draws.shape[1:2], n_rows)
    for rows, some in _split(observations, n_rows, draws.shape[0] * draws.shape[2]):
        part = torch.as_tensor(draws[:, rows]).detach().cpu()
        if not bool(part.isfinite().all()):
            raise NotFiniteError(
                "posterior",
                got="has a draw that is NaN or infinite",
                expected="draws are ranked",
                fix="Leave these draws out, as many for every observation.",
            )
        yield _Block(rows, some, part, None, _no_density)


def _blocks_of_sbi(
    posterior: Any, observations: Any, n_rows: int, n_samples: int, generator: Generator
) -> Iterator[_Block]:
    if not callable(getattr(posterior, "sample_batched", None)):
        raise _unknown(posterior)
    # sbi draws from torch's own generator.
    seed = int(torch.randint(2**62, (), generator=generator))
    for rows, some in _split(observations, n_rows, n_samples):
        given = _numbers(some).to(torch.get_default_dtype())
        with torch.random.fork_rng(devices=()), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Capping max_sampling_batch_size")
            torch.manual_seed(seed + rows.start)
            draws = posterior.sample_batched((n_samples,), x=given, show_progress_bars=False)
        draws = draws.reshape(n_samples, len(given), -1).cpu()
        yield _Block(rows, some, draws, None, lambda v, x: _sbi_log_prob(posterior, v, x))


def _sbi_log_prob(posterior: Any, parameters: Tensor, observations: Any) -> Tensor:
    """Return log densities [S, b] under posteriors of sbi, up to a constant for each."""
    values = parameters.to(torch.get_default_dtype())
    given = _numbers(observations).to(values.dtype)
    if hasattr(posterior, "log_prob_batched"):
        # Without the part of the density beyond the prior, which ranks do not depend on.
        return posterior.log_prob_batched(values, x=given, norm_posterior=False)
    each = [
        posterior.potential(values[:, row], x=given[row : row + 1]) for row in range(len(given))
    ]
    return torch.stack(each, 1)


def _no_density(parameters: Tensor, observations: Any) -> Tensor:  # noqa: ARG001
    raise ArgumentError(
        "posterior",
        got="is given by draws",
        expected="highest-density regions need a density",
        fix="Pass log_prob=…, or use tarp(…), which needs none.",
    )


def _numbers(observations: Any) -> Tensor:
    """Return some observations in double precision, from a tensor or a frame."""
    if isinstance(observations, Tensor):
        return observations
    return TargetColumns.of(observations, "observations", observed=False).values


def _split(observations: Any, n_rows: int, numbers: int) -> Iterator[tuple[slice, Any]]:
    """Yield slices of rows, and the observations there as a tensor or a frame."""
    if observations is not None and not is_frame(observations):
        observations = torch.from_numpy(as_doubles(observations, "observations"))
        _check_rows("observations", observations.shape, n_rows)
    elif observations is not None:
        _check_rows("observations", (len(observations),), n_rows)
        observations = getattr(observations, "iloc", observations)
    size = max(1, NUMBERS_PER_BLOCK // numbers)
    for start in range(0, n_rows, size):
        rows = slice(start, min(start + size, n_rows))
        yield rows, None if observations is None else observations[rows]


def _check_rows(name: str, shape: Sequence[int], n_rows: int) -> None:
    if not shape or shape[0] != n_rows or (name == "posterior" and len(shape) > 1):
        raise ShapeError(
            name,
            got=f"has {'no' if not shape else shape[0]} rows"
            if name == "observations"
            else f"is of {list(shape)} observations",
            expected=f"there are {n_rows} rows of parameters",
            fix="Pass one for each row of the parameters.",
        )


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
    found = dict(functions or {})
    for name, function in found.items():
        if not callable(function):
            raise KindError(
                "functions",
                got=f"has {function!r} for {name!r}",
                expected="a function was expected",
                fix="Pass {name: function}, with parameters [S, b, D] and observations → [S, b].",
            )
    return found


def _check_seed(seed: int) -> int:
    return as_whole("seed", seed, 0, fix="Pass a seed such as 0.")


def _is_draws(posterior: object) -> bool:
    return isinstance(posterior, Tensor | np.ndarray | list | tuple)


def _unknown(posterior: object) -> KindError:
    return KindError(
        "posterior",
        got=f"is a {type(posterior).__name__}",
        expected="a density of parameters given observations was expected",
        fix="Pass a posterior of condens.inference or sbi, a network, a batch of mixtures, or "
        "draws [S, n, D].",
    )
