"""Amortised posteriors: densities of a simulator's parameters given its observations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from condens.data import Rows, TableLike, TargetColumns
from condens.data.arrays import as_doubles
from condens.data.frames import is_frame
from condens.data.table import in_order
from condens.distributions import Mixture
from condens.distributions.checks import Numbers
from condens.distributions.dimensions import check_names
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.estimator.construction import Architecture, announced_transforms, check_parameter
from condens.inference.priors import Prior, off_bounds, transforms_of
from condens.nn import DensityNetwork
from condens.scalars import as_whole
from condens.training import History, Settings, default_components, default_settings
from condens.training.adjustment import set_limits
from condens.training.diagnostics import UNNEEDED
from condens.training.interruption import how_far, interruption
from condens.training.loop import gradients
from condens.transforms import Transform
from condens.transforms.choice import TargetTransform


@dataclass(frozen=True)
class AmortisedPosterior:
    """p(parameters | observation) for any observation, from one training; see `posterior`.

    Args:
        network: from observations [b, C] to densities over D parameters, in double precision.
        observation_shape: of one observation, C numbers.
        history: of the training.
        observation_names: of the columns, if observations were passed in a data frame.
    """

    network: DensityNetwork
    observation_shape: torch.Size
    history: History
    observation_names: tuple[str, ...] | None = None

    @torch.no_grad()
    def given(self, observation: TableLike) -> Mixture:
        """Return the joint density of the parameters given an observation, or a batch of them.

        The columns of a data frame, or the entries of one of its rows, are taken by their names.
        Shapes: one observation → batch shape [], `[b, *observation_shape]` → [b].
        """
        values = in_order(
            *_read(observation, "observation"),
            self.observation_names,
            "observation",
            expected=f"{', '.join(self.observation_names or ())} were trained on",
            fix="Pass just these, or an array.",
        )
        shape, batch = self.observation_shape, values.dim() - len(self.observation_shape)
        if batch not in (0, 1) or values.shape[batch:] != shape:
            raise ShapeError(
                "observation",
                got=f"has shape {list(values.shape)}",
                expected=f"{list(shape)} was expected",
                fix="Pass one of the shape that was trained on, or a batch of them.",
            )
        if not bool(values.isfinite().all()):
            raise NotFiniteError(
                "observation",
                got="has an entry that is NaN or infinite",
                expected="the network reads every entry",
                fix="Fill it as in training, or train without it.",
            )
        found: Mixture = self.network(values.reshape(-1, shape.numel()))
        return found if batch else found[0]

    def sample(
        self,
        sample_shape: Sequence[int],
        observation: TableLike,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Draw parameters `[*sample_shape, D]`, or `[*sample_shape, b, D]` of b observations."""
        return self.given(observation).sample(sample_shape, generator=generator)

    def log_prob(self, parameters: Numbers, observation: TableLike) -> Tensor:
        """Return the log density of parameters [..., D] given an observation."""
        return self.given(observation).log_prob(parameters)


def posterior(
    parameters: TableLike,
    observations: TableLike,
    *,
    target_transform: TargetTransform = None,
    prior: Prior | None = None,
    n_components: int | None = None,
    n_members: int = 5,
    names: Sequence[str] | None = None,
    settings: Settings | None = None,
    random_state: int = 0,
) -> AmortisedPosterior:
    """Learn p(parameters | observation) from draws of the prior and their simulations.

    Args:
        parameters: [n, D], draws from the prior; a data frame gives their names.
        observations: [n, C], or [n, …] with C numbers a row, simulated with these parameters;
            a data frame gives their names, by which later observations are read.
        target_transform: for bounded parameters, as in `MDNRegressor`: "positive", "unit", a
            tuple (lower, upper), … for all, in a list with one for each, or as {name: …}.
            Then the density beyond the bounds is zero.
        prior: what the parameters were drawn from, in place of `target_transform`: bounds (lower,
            upper) of a box, a number or D numbers each; a torch distribution, such as
            `Independent(Uniform(low, high), 1)` or `MultivariateNormal`; or a list with one for
            each parameter. Its support gives the transforms. A uniform parameter becomes standard
            normal: where an observation says nothing, one component is the exact posterior.
        n_components: of the mixture; by default 3 to 20 by the number of rows, see
            `condens.training.default_components`, and of several members twice as many, up to 20,
            as long as validation rows clearly prefer that.
        n_members: networks whose densities are averaged.
        names: of the parameters.
        settings: how to train; by default `condens.training.default_settings` of the number of
            rows. The seed is `random_state`.
        random_state: a seed, for the same bytes every time.

    Ctrl-C ends the training after the batch by `KeyboardInterrupt`.

    >>> theta = 2 * torch.rand(300, 2, generator=Generator().manual_seed(0)) - 1
    >>> learned = posterior(theta, theta.sum(1), settings=Settings(epochs=20), names=["a", "b"])
    >>> learned.given([1.5])
    GaussianMixture(batch_shape=[], n_components=15, dimensions=2, covariance='full',
                    names=('a', 'b'))
    """
    settings = check_parameter("settings", settings)
    count = check_parameter("n_components", n_components)
    if isinstance(count, str):
        raise ArgumentError(
            "n_components",
            got="is 'auto'",
            expected="the posterior has no search for it",
            fix="Pass a number, or leave it out for a default by the number of rows.",
        )
    members = check_parameter("n_members", n_members)
    seed = as_whole("random_state", random_state, 0, fix="Pass a seed such as 0.")
    given = TargetColumns.of(parameters, "parameters")
    if names is not None:
        given = given._replace(names=check_names(names, given.values.shape[1]))
    seen, observation_names = _read_rows(observations)
    given, transforms = _transforms(target_transform, prior, given)
    rows = Rows.of(seen.flatten(1), given.values, names=("observations", "parameters", "weights"))
    settings = replace(settings or default_settings(len(rows), members), seed=seed)
    with gradients(), interruption() as interrupted:
        network, history = Architecture(
            n_columns=rows.condition.shape[1],
            names=given.names,
            transforms=transforms,
            shortcut="auto",
            select_columns="auto",
            n_members=members,
        ).train(
            count or default_components(len(rows)),
            rows,
            settings,
            generator=Generator().manual_seed(seed),
            more_components=count is None,
        )
    if interrupted.is_set():
        raise KeyboardInterrupt(f"posterior was interrupted {how_far(history)}.")
    history.warn(stacklevel=2, ignore=UNNEEDED if count is None else ())
    network = network.double().eval()
    set_limits(network, settings, network.reach_of(rows.target))
    return AmortisedPosterior(network, seen.shape[1:], history, observation_names)


def _transforms(
    spec: TargetTransform, prior: Prior | None, parameters: TargetColumns
) -> tuple[TargetColumns, tuple[Transform, ...]]:
    """Return the parameters and the transform of each; refuse draws outside its support."""
    columns = parameters.values.unbind(1)
    if prior is None:
        transforms = announced_transforms(spec, parameters, "parameters")
    elif spec is not None:
        raise ArgumentError(
            "prior",
            got="goes with target_transform",
            expected="the support of the prior gives the transforms",
            fix="Pass either.",
        )
    else:
        transforms = transforms_of(prior, len(columns))
        columns = tuple(map(off_bounds, transforms, columns))
    labels = parameters.names or range(len(columns))
    for label, transform, column in zip(labels, transforms, columns, strict=True):
        transform.check(f"parameters, column {label!r},", column)
    return parameters._replace(values=torch.stack(columns, 1)), transforms


def _read_rows(observations: TableLike) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return observations [n, …] and the names of their columns, as `_read` does."""
    values, names = _read(observations, "observations")
    if not values.dim() or not values.numel():
        raise ShapeError(
            "observations",
            got=f"has shape {list(values.shape)}",
            expected="numbers for each row were expected",
            fix="Pass [n, C] or [n, …].",
        )
    # Of one number each, the names are those of rows.
    return (values.unsqueeze(1), None) if values.dim() == 1 else (values, names)


def _read(given: Any, name: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return observations, and the names of their last axis if they have any.

    From numbers, the columns of a frame, or a series: a row of a frame, or a column.
    """
    if is_frame(given):
        columns = TargetColumns.of(given, name, observed=False)
        return columns.values, columns.names
    # A row of a pandas frame has the names of its columns as index.
    index = list(given.index) if hasattr(type(given), "iloc") else []
    named = index and all(isinstance(label, str) for label in index)
    return torch.from_numpy(as_doubles(given, name)), tuple(index) if named else None
