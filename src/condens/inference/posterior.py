"""Amortised posteriors: densities of a simulator's parameters given what it would observe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from condens.data import Rows, TargetColumns
from condens.data.arrays import as_doubles
from condens.data.frames import is_frame
from condens.distributions.dimensions import check_names
from condens.errors import (
    ArgumentError,
    DimensionError,
    NotFiniteError,
    ShapeError,
    UnusedComponentsWarning,
)
from condens.estimator.construction import check_parameter, choose_transforms
from condens.nn import MixtureNetwork
from condens.training import History, Settings, default_components, default_settings, train
from condens.training.interruption import how_far, interruption
from condens.training.loop import gradients
from condens.transforms import Real, Transform, choice


@dataclass(frozen=True)
class AmortisedPosterior:
    """p(parameters | observation) for any observation, from one training; see `posterior`.

    Args:
        network: from observations [b, C] to densities over D parameters, in double precision.
        observation_shape: of one observation, C numbers.
        history: what happened in training.
        observation_names: of the columns, where observations came in a data frame.
    """

    network: MixtureNetwork
    observation_shape: torch.Size
    history: History
    observation_names: tuple[str, ...] | None = None

    @torch.no_grad()
    def given(self, observation: Any) -> Any:
        """Return the joint density of the parameters given an observation, or a batch of them.

        A `GaussianMixture`; a `TransformedMixture` where parameters are bounded. The columns of
        a data frame, or the entries of one of its rows, are taken by their names. Shapes: one
        observation → batch shape [], `[b, *observation_shape]` → [b].
        """
        given = _observations(observation, "observation")
        values = self._in_order(given).values
        shape, batch = self.observation_shape, values.dim() - len(self.observation_shape)
        if batch not in (0, 1) or values.shape[batch:] != shape:
            raise ShapeError(
                "observation",
                got=f"has shape {list(values.shape)}",
                expected=f"{list(shape)} was expected",
                fix="Pass one as it was simulated for the training, or rows of them.",
            )
        if not bool(values.isfinite().all()):
            raise NotFiniteError(
                "observation",
                got="has an entry that is NaN or infinite",
                expected="the network reads every one",
                fix="Fill it as in the training, or train without it.",
            )
        found = self.network(values.reshape(-1, shape.numel()))
        return found if batch else found[0]

    def _in_order(self, given: "_Observations") -> "_Observations":
        ours, theirs = self.observation_names, given.names
        if ours is None or theirs is None or ours == theirs:
            return given
        if sorted(ours) != sorted(theirs):
            raise DimensionError(
                "observation",
                got=f"has {', '.join(theirs)}",
                expected=f"{', '.join(ours)} were trained on",
                fix="Pass just these, or an array.",
            )
        order = [theirs.index(name) for name in ours]
        return _Observations(given.values[..., order], ours)

    def sample(
        self, sample_shape: Sequence[int], observation: Any, *, generator: Generator | None = None
    ) -> Tensor:
        """Draw parameters `[*sample_shape, D]`, or `[*sample_shape, b, D]` of b observations."""
        return self.given(observation).sample(sample_shape, generator=generator)

    def log_prob(self, parameters: Any, observation: Any) -> Tensor:
        """Return the log density of parameters [..., D] given an observation."""
        return self.given(observation).log_prob(parameters)


def posterior(
    parameters: Any,
    observations: Any,
    *,
    target_transform: Any = None,
    n_components: int | None = None,
    names: Sequence[str] | None = None,
    settings: Settings | None = None,
    random_state: int = 0,
) -> AmortisedPosterior:
    """Learn p(parameters | observation) from parameters drawn from a prior and simulated.

    Args:
        parameters: [n, D], draws from the prior; a data frame gives their names.
        observations: [n, C], or [n, …] of C numbers a row, what the simulator made of them; a
            data frame gives their names, which later observations are read by.
        target_transform: for bounded parameters, as `MDNRegressor` has it: "positive", "unit",
            a tuple (lower, upper), … for all, in a list with one for each, or as {name: …}.
            Then no density is beyond the bounds.
        n_components: of the mixture; by default what suits the number of rows.
        names: of the parameters.
        settings: how to train; by default what suits the number of rows. The seed is
            `random_state`.
        random_state: a seed, for the same bytes every time.

    Ctrl-C ends it after the batch by `KeyboardInterrupt`.

    >>> theta = 2 * torch.rand(300, 2, generator=Generator().manual_seed(0)) - 1
    >>> learnt = posterior(theta, theta.sum(1), settings=Settings(epochs=20), names=["a", "b"])
    >>> learnt.given([1.5])
    GaussianMixture(batch_shape=[], n_components=3, dimensions=2, covariance='full',
                    names=('a', 'b'))
    """
    check_parameter("settings", settings)
    check_parameter("n_components", n_components)
    if isinstance(n_components, str):
        raise ArgumentError(
            "n_components",
            got="is 'auto'",
            expected="the posterior has no search for it",
            fix="Pass a number, or leave it out: what suits the number of rows is taken.",
        )
    if not isinstance(random_state, Integral) or not 0 <= int(random_state) < 2**63:
        raise ArgumentError(
            "random_state",
            got=f"is {random_state!r}",
            expected="a whole number from 0 to 2**63 − 1 was expected",
            fix="Pass 0.",
        )
    random_state = int(random_state)
    given = TargetColumns.of(parameters, "parameters")
    if names is not None:
        given = given._replace(names=check_names(names, given.values.shape[1]))
    seen, observed = _observations(observations, "observations")
    if not seen.dim() or not seen.numel():
        raise ShapeError(
            "observations",
            got=f"has shape {list(seen.shape)}",
            expected="numbers for each row were expected",
            fix="Pass [n, C] or [n, …].",
        )
    if seen.dim() == 1:  # one number each: what is named are the rows
        seen, observed = seen.unsqueeze(1), None
    told = ("observations", "parameters", "weights")
    rows = Rows.of(seen.flatten(1), given.values, names=told)
    settings = default_settings(len(rows)) if settings is None else Settings.given(settings)
    components = default_components(len(rows)) if n_components is None else n_components
    transforms = _transforms(target_transform, given)
    with gradients(), interruption() as asked:
        network = MixtureNetwork.of(
            rows.condition.shape[1],
            rows.target.shape[1],
            n_components=components,
            names=given.names,
            transforms=transforms,
            generator=Generator().manual_seed(random_state),
        )
        history = train(network, rows, replace(settings, seed=random_state), warn=False)
    if asked.is_set():
        raise KeyboardInterrupt(f"posterior was interrupted {how_far(history)}.")
    history.warn(stacklevel=2, ignore=(UnusedComponentsWarning,) if n_components is None else ())
    return AmortisedPosterior(network.double().eval(), seen.shape[1:], history, observed)


class _Observations(NamedTuple):
    """Observations, and the names of their last axis if they have any."""

    values: Tensor
    names: tuple[str, ...] | None


def _observations(given: Any, name: str) -> _Observations:
    """Read numbers, the columns of a frame, or a series: a row of a frame, or a column."""
    if is_frame(given):
        columns = TargetColumns.of(given, name, observed=False)
        return _Observations(columns.values, columns.names)
    values = torch.from_numpy(as_doubles(given, name))
    # A row of a pandas frame has the names of its columns as index.
    index = list(given.index) if hasattr(type(given), "iloc") else []
    named = index and all(isinstance(label, str) for label in index)
    return _Observations(values, tuple(index) if named else None)


def _transforms(spec: Any, given: TargetColumns) -> tuple[Transform, ...] | None:
    """Return the maps of the parameters, checked on them; None where all of them are real."""
    columns = given.values.unbind(1)
    labels = given.names or range(len(columns))
    transforms = choose_transforms(spec, labels, lambda place: choice.propose(columns[place]))
    for label, own, column in zip(labels, transforms, columns, strict=True):
        own.check(f"parameters, column {label!r},", column)
    return None if all(isinstance(own, Real) for own in transforms) else transforms
