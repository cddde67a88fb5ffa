"""`MDNRegressor`: the joint density of the targets behind scikit-learn's `fit`."""

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Generator, Tensor, nn

from condens.data import Rows, Table, TableEncoder, TableLike
from condens.data.frames import is_frame
from condens.data.groups import number_groups, read_groups
from condens.data.stream import Shards
from condens.data.survey import Apart, TableColumns
from condens.distributions import Entropies, Mixture, checks
from condens.errors import (
    ArgumentError,
    ModelFileError,
    ShapeError,
    TrainingError,
)
from condens.estimator.construction import (
    SETTING_NAMES,
    Architecture,
    Splitter,
    caller_level,
    check_flag,
    check_parameters,
    choose_transforms,
    combine_settings,
    dropout_of,
    has_shortcut,
    n_bins_of,
    n_components_of,
)
from condens.estimator.document import Fitted, from_dict, to_dict
from condens.estimator.effects import Sweep
from condens.estimator.inputs import Division, Inputs, divide
from condens.estimator.predictions import Array, Predictions, draw_seed
from condens.estimator.shards import open_shards
from condens.estimator.summary import Summary
from condens.evaluation.baselines import Baselines
from condens.evaluation.conformal import Calibration, Region
from condens.evaluation.novelty import Novelty
from condens.evaluation.permutation import Columns, Importance, importance
from condens.nn import DensityNetwork
from condens.persistence.container import naming, read, write
from condens.persistence.header import short
from condens.scalars import as_fraction, as_whole
from condens.training import Epoch, History, Settings, default_components, default_settings, train
from condens.training.adjustment import set_adjustment
from condens.training.diagnostics import UNNEEDED
from condens.training.distributed import Group
from condens.training.interruption import how_far, interruption
from condens.training.loop import gradients
from condens.training.selection import MAX_COMPONENTS, reduce_components
from condens.training.streaming import Stream
from condens.transforms import Transform
from condens.transforms.choice import TargetTransform

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Parameters that describe the networks.
OPTION_NAMES = (
    *("covariance", "rank", "floor", "width", "depth", "dropout", "n_bins", "shortcut"),
    *("select_columns", "n_members", "backbone"),
)
UNCHANGED = (
    "The model is as it was before. learning_rate and floor are parameters of the model; pass "
    "clip and target_noise in settings=Settings(…)."
)
# Learning rate of `partial_fit`, as a fraction of that of `Settings`, which falls to zero.
PARTIAL_FIT_RATE = 0.1


def _adjusts(settings: Settings, validation_data: object) -> bool:
    """Tell whether rows are to be held out for spread and tail."""
    fits = "fit" in (settings.spread, settings.tail)
    return fits and (settings.validation_fraction > 0 or validation_data is not None)


class MDNRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A mixture density network: p(y | x) as a Gaussian mixture with full covariances.

    Args:
        n_components: of the mixture; by default 3 to 20 by the number of rows, see
            `condens.training.default_components`, and of several members twice as many, up to 20,
            as long as validation rows clearly prefer that. "auto" finds how few the data need.
        covariance: `full`, `diagonal`, `isotropic`, `tied` or `low_rank`.
        rank: of the covariance `low_rank`; 5 by default.
        floor: smallest scale of a component in training, in standard deviations of the targets;
            0.001 by default. Raise it where components collapse.
        width, depth: of the network's hidden layers.
        dropout: fraction of a hidden layer's outputs set to zero in training; by default 0.1 with
            bins, else 0, or 0.1 of several members if validation rows clearly prefer it.
        n_bins: also read every number of X in that many linear pieces, for steps and thresholds;
            0 for none. "auto" compares none and 24 on the validation rows of three members each,
            trained for part of the epochs, and is none where `n_members` is 1.
        shortcut: give the networks a linear part, from the columns of X to the means, that starts
            as a ridge regression. "auto" compares networks with and without on the same rows; one
            network alone has none unless a linear model is better than what it has learned.
        select_columns: "auto" to leave out columns of numbers, of five or more: those that
            validation rows do not need, if they are a third at least, and if networks without them
            are clearly better on these rows. False to read all columns, as one network alone does.
        n_members: networks whose densities are averaged. Each is validated on rows, or groups, of
            its own and trained on all others, unless a splitter or `validation_data` says
            otherwise; the losses in `history_` are their means, not those of the average.
        target_transform: for constrained targets: "positive", "count", "integer", "unit", a
            tuple (lower, upper) or a `condens.transforms.Transform`, for all targets, in a list
            with one for each, or as {name: …}. "auto" chooses by the data, with a warning that
            names its choice. Targets exactly on a bound are refused, with advice.
        backbone: makes, from the number of condition columns, a module that maps them to
            features [b, F] and has F as attribute `features`; in place of an MLP.
        epochs, batch_size, learning_rate: as in `settings`; the other settings keep their
            defaults.
        validation_fraction: fraction of the rows, or of the groups, held out for early stopping,
            by each member; 0.05 by default, of a single network 0.1.
        calibration_fraction: fraction of the rows, or of the groups, kept from training for
            `calibrate`, where each row, or each group, counts once.
        splitter: a splitter of scikit-learn that decides which rows are held out, such as
            `TimeSeriesSplit()`: the test rows of its last split, for validation, half of them for
            spread and tail. With a
            `calibration_fraction` above 0 these rows are for calibration, and the splitter
            divides its training rows once more for validation. Its sizes count, not the
            fractions.
        settings: how to train, see `condens.training.Settings`; by default
            `condens.training.default_settings` of the number of rows. Its `spread` and `tail` are
            set on a twentieth of the rows, or of the groups, held out for them: from 200 rows
            on, or 20 groups, if rows are held out for validation too. The seed is drawn from
            `random_state`.
        directory: where `fit` keeps its state: interrupted or killed, the same call continues
            from there and ends with the bytes of an uninterrupted fit. It needs a
            `random_state`.
        device: where to train, such as "cuda"; the CPU by default. Predictions are made on
            the CPU.
        callbacks: a function, or a list of them, called with every `condens.training.Epoch`
            that ends; one that returns True stops the fit.
        store_summary: keep ranges, quantiles and histograms of the columns in the model and its
            file, for the explorer's sliders; no row can be read off them. See `summary_`.
        warm_start: let `fit` continue from the network and the scales of the last one. Pass
            the same rows then, or only new ones: those held out before are held out again.
        verbose: show progress.
        random_state: a seed, for the same bytes in every fit.

    Attributes:
        network_: the fitted network.
        n_components_: the number of components, of each member.
        n_bins_: the linear pieces in which the network reads every number; 0 for none.
        shortcut_: whether the network has a linear part.
        dropout_: the dropout with which it was trained.
        unused_columns_: the columns of X that it does not read, by name or position.
        n_iter_: the number of epochs, of the first members.
        loss_curve_: the training loss of every epoch.
        history_: everything about the training, see `condens.training.History`.
        inputs_: the columns of X and y: encoder, names and transforms.
        encoder_: turns X into what the network reads.
        transforms_: the transform of each target.
        n_targets_, target_names_: the columns of y; the names are None if it had none.
        baselines_: the unconditional Gaussian and a linear model of the same rows, see
            `condens.evaluation.Baselines`.
        novelty_: what conditions are usual among them, see `novelty`.
        summary_: of the columns of these rows, see `condens.estimator.summary.Summary`; only with
            `store_summary`.
        calibration_: scores of the rows of `calibrate`, if there were any.
        notes_: JSON values of yours that go with the model into its file, by name; none after a
            fit.
        held_out_: rows of the shards that `fit_shards` was to keep from the fit; in no file.
        n_features_in_, feature_names_in_: the columns of X.

    An entry of y that is NaN was not observed: its row counts with the exact density of its
    other entries. Columns of X may be numbers, booleans or, in a data frame, categories, and
    all of them may have missing values.

    A model file has every parameter except `directory`, `splitter`, `callbacks` and a
    `random_state` that is not a number.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X @ [[1.0, 0.0], [1.0, 2.0]] + 0.1 * rng.normal(size=(300, 2))
    >>> model = MDNRegressor(random_state=0, epochs=20).fit(X, y)
    >>> model.predict_dist(X[:5], tail=False)
    GaussianMixture(batch_shape=[5], n_components=15, dimensions=2, covariance='full')
    """

    network_: DensityNetwork
    history_: History
    inputs_: Inputs
    baselines_: Baselines
    novelty_: Novelty
    summary_: Summary
    calibration_: Calibration
    held_out_: Apart | None
    notes_: dict[str, Any]
    seed_: int

    def __init__(
        self,
        n_components: int | Literal["auto"] | None = None,
        *,
        covariance: str = "full",
        rank: int | None = None,
        floor: float | None = None,
        width: int = 128,
        depth: int = 3,
        dropout: float | None = None,
        n_bins: int | Literal["auto"] = "auto",
        shortcut: bool | Literal["auto"] = "auto",
        select_columns: Literal["auto", False] = "auto",
        n_members: int = 5,
        target_transform: TargetTransform = None,
        backbone: Callable[[int], nn.Module] | None = None,
        epochs: int | None = None,
        batch_size: int | Literal["rule"] | None = None,
        learning_rate: float | None = None,
        validation_fraction: float | None = None,
        calibration_fraction: float = 0.0,
        splitter: Splitter | None = None,
        settings: Settings | None = None,
        directory: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        callbacks: Callable[[Epoch], object] | Sequence[Callable[[Epoch], object]] | None = None,
        store_summary: bool = True,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.rank = rank
        self.floor = floor
        self.width = width
        self.depth = depth
        self.dropout = dropout
        self.n_bins = n_bins
        self.shortcut = shortcut
        self.select_columns = select_columns
        self.n_members = n_members
        self.target_transform = target_transform
        self.backbone = backbone
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
        self.splitter = splitter
        self.settings = settings
        self.directory = directory
        self.device = device
        self.callbacks = callbacks
        self.store_summary = store_summary
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    # Fitting.

    def fit(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        validation_data: tuple[TableLike, TableLike]
        | tuple[TableLike, TableLike, ArrayLike | None]
        | None = None,
    ) -> Self:
        """Fit to rows of X, [n, F], and y, [n] or [n, D].

        Args:
            X, y: arrays, lists, tensors, pandas, polars or pyarrow tables.
            sample_weight: [n]; rows of weight zero are left out.
            groups: the group of each row [n]. Rows of one group are never on both sides: whole
                groups are held out for validation and calibration.
            validation_data: (X, y), or (X, y, sample_weight), to validate on; then no rows are
                held out for validation.

        Ctrl-C ends the fit after the batch by `KeyboardInterrupt`, so that searches and loops
        around it end too. The model keeps the best weights so far, ready to predict; before the
        end of the first epoch it is left as it was. Warnings about the fit come last: where they
        are errors, the model is fitted all the same.
        """
        parameters = check_parameters(self.get_params(deep=False))
        keep = parameters["warm_start"] and self.__sklearn_is_fitted__()
        self._check_resumable(parameters, keep=keep)
        fraction = parameters["validation_fraction"]
        if validation_data is not None and fraction:
            raise ArgumentError(
                "validation_data",
                got=f"was passed with validation_fraction={fraction}",
                expected="one of them was expected",
                fix="Leave either out.",
            )
        with Group.current(parameters["device"]).telling():
            return self._fit(parameters, (X, y, sample_weight), groups, validation_data, keep=keep)

    def fit_shards(
        self,
        shards: Shards | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        targets: Sequence[str],
        conditions: Sequence[str] | None = None,
        *,
        sample_weight: str | None = None,
        groups: str | None = None,
        test_fraction: float = 0.0,
    ) -> Self:
        """Fit to a table in Parquet or Arrow files that are larger than memory.

        The files are read once for the statistics of all rows, and then once for every epoch, in
        an order that is shuffled over all of them; see `condens.training.Stream`. Started by
        torchrun, every process reads its part. Baselines, novelty, the summary, and what `n_bins`,
        `shortcut` and `select_columns` choose, come from a sample of 100 000 rows. Rows are held
        out by a hash of their file and number, or of their group, at most 100 000 for each purpose.

        Args:
            shards: a directory, a pattern such as ``shards/*.parquet``, files, or `Shards`.
            targets: the columns of y.
            conditions: the columns of X; all others by default.
            sample_weight, groups: a column of each.
            test_fraction: fraction of the rows, or of the groups, to be kept from the fit, see
                `held_out_`.
        """
        parameters = check_parameters(self.get_params(deep=False))
        fraction = as_fraction("test_fraction", test_fraction, fix="Pass 0 for none, or 0.1.")
        self._check_resumable(parameters, keep=False)
        for name in ("splitter", "warm_start"):
            if parameters[name]:
                raise ArgumentError(
                    name,
                    got=f"is {parameters[name]!r} in a fit to shards",
                    expected="these are divided by a hash of their rows, and start anew",
                    fix="Leave it out.",
                )
        group = Group.current(parameters["device"])
        with group.telling():
            seed = group.agree(draw_seed(self.random_state))
            opened = open_shards(
                shards if isinstance(shards, Shards) else Shards(shards),
                TableColumns.of(targets, conditions, sample_weight, groups),
                parameters,
                seed=seed,
                test=fraction,
            )
            architecture = self._architecture(parameters, opened.inputs)
            self._learn(
                parameters, opened.inputs, architecture, opened.division, seed, stream=opened.stream
            )
        self.held_out_ = opened.stream.apart("test")
        return self

    def partial_fit(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train on rows once, none held out for validation; the first call sets the scales.

        The learning rate is constant, a tenth of the `learning_rate` of the model or else of
        `Settings`, and `directory` is not used.
        """
        parameters = check_parameters(self.get_params(deep=False))
        given = combine_settings(parameters, Settings())
        settings = replace(
            given,
            epochs=1,
            schedule="constant",
            warmup_steps=0,
            average=0.0,
            validation_fraction=0.0,
            learning_rate=PARTIAL_FIT_RATE * given.learning_rate,
        )
        parameters |= {**dict.fromkeys(SETTING_NAMES), "settings": settings, "directory": None}
        with Group.current(parameters["device"]).telling():
            return self._fit(
                parameters, (X, y, sample_weight), None, None, keep=self.__sklearn_is_fitted__()
            )

    def calibrate(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        *,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Prepare `predict_region` with rows that were not used in `fit`, each counting once.

        And `predict_interval(…, calibrated=True)`. With the group of each row [n] in `groups`,
        every group counts once, and the coverage is that of new groups.
        """
        rows = self.read_rows(X, y)
        numbers = None if groups is None else number_groups(read_groups(groups, len(rows)))
        return self._calibrate(self.inputs_.supported(rows), numbers)

    def adjust(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Set spread and tail anew, on rows that were not used in `fit`; drop a calibration.

        `fit` holds out rows for both already. Tail and limit stay where the training targets are,
        unless they were switched off. See `condens.training.adjust`.
        """
        parameters = check_parameters(self.get_params(deep=False))
        rows = self.inputs_.supported(self.read_rows(X, y, sample_weight)).observed("y")
        network = copy.deepcopy(self.network_)
        wide = network.tail or network.tail_around(rows.target, rows.weights)
        reach = network.reach_of(rows.target, rows.weights)
        if network.limit is not None:
            reach = network.limit.reach
        settings = combine_settings(parameters, Settings())
        found = set_adjustment(network, rows, settings, wide, reach)
        history = replace(self.history_, adjustment=found)
        references = (self.baselines_, self.novelty_, self.seed_)
        summary = getattr(self, "summary_", None)
        return self._set(Fitted(self.inputs_, network, history, *references, summary))

    # Predicting.

    def predict_dist(self, X: TableLike, *, tail: bool = True) -> Mixture:  # noqa: N803
        """Return the joint densities of the targets, a batch of n, in the units of y.

        Their last eleven components are the tail, a wide density of all targets of the fit with a
        small weight, `history_.adjustment.tail`, so that a surprise costs a log-likelihood tens of
        nats and not thousands. `tail=False` leaves it out, as the other predictions do, plots and
        draws included; `score_samples` and `predict_region` have it.

        As every prediction, it warns of rows of X that are far outside those of the fit (by more
        than half of a column's range). Their densities are finite, and no narrower than at the
        edge of the fitted rows, but no data support them.
        """
        return self._predictions(X).densities(tail=check_flag("tail", tail))

    def predict(
        self,
        X: TableLike,  # noqa: N803
        return_std: bool = False,
        return_cov: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Return the means, [n] or [n, D] as y was.

        With `return_std` the standard deviations too, of the same shape; with `return_cov`
        the covariances of each row's targets, [n, D, D].

        The moments of positive targets and counts depend on a component's width more than on
        its weight. Here no component counts as wider, in log y, than three times the targets
        of the fit; `predict_dist(X).mean` has no such bound. A moment beyond double precision
        is returned as the largest number.
        """
        std, cov = check_flag("return_std", return_std), check_flag("return_cov", return_cov)
        if std and cov:
            raise ArgumentError(
                "return_std and return_cov",
                got="are both true",
                expected="one of them was expected",
                fix="The diagonal of the covariance holds the squares of the deviations.",
            )
        found = self._predictions(X)
        if std or cov:
            return found.moments("stddev" if std else "covariance_matrix")
        return found.mean()

    def predict_quantiles(
        self,
        X: TableLike,  # noqa: N803
        quantiles: ArrayLike = (0.05, 0.5, 0.95),
    ) -> Array:
        """Return quantiles of each target alone, [n, Q] or [n, D, Q], without the tail."""
        return self._predictions(X).quantiles(quantiles)

    def predict_interval(
        self,
        X: TableLike,  # noqa: N803
        coverage: float = 0.9,
        *,
        calibrated: bool = False,
    ) -> Array:
        """Return intervals with this probability under the model, [n, 2] or [n, D, 2].

        For each target alone, of the density without its tail, with equal probabilities on both
        sides. `calibrated` ones hold this fraction of new targets, on average over rows like those
        of `calibrate`, whether the model is right or not.
        """
        calibration = self._calibration() if check_flag("calibrated", calibrated) else None
        coverage = checks.check_coverage("coverage", coverage)
        return self._predictions(X).intervals(coverage, calibration)

    def predict_region(self, X: TableLike, coverage: float = 0.9) -> Region:  # noqa: N803
        """Return regions of high density that hold this fraction of new targets.

        Guaranteed on average over rows like those of `calibrate`, whether the model is right or
        not; with intervals for each target alone. See `condens.evaluation.Region`.
        """
        return self._calibration().region(self.predict_dist(X), coverage)

    def sample(
        self,
        X: TableLike,  # noqa: N803
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = None,
    ) -> Array:
        """Draw targets, [S, n] or [S, n, D], without the tail."""
        count = as_whole("n_samples", n_samples, 1, fix="Pass 1000, for instance.")
        return self._predictions(X).samples(count, draw_seed(random_state))

    def predict_entropy(
        self,
        X: TableLike,  # noqa: N803
        n_samples: int = 1000,
        random_state: int | np.random.RandomState | None = None,
    ) -> Entropies:
        """Estimate what each density leaves open, in nats, with standard errors.

        `total` is the sum of `aleatoric`, the mean entropy of the members, and `epistemic`, what
        they disagree about: where it is high, more training rows would help. Each is an
        `Estimate(value, standard_error)` of tensors [n]. With `n_members=1` the epistemic part is
        0 by definition. See `condens.distributions.Entropies`.
        """
        generator = Generator().manual_seed(draw_seed(random_state))
        found = self._predictions(X)
        return found.network.entropies(found.condition, n_samples=n_samples, generator=generator)

    def novelty(self, X: TableLike) -> Array:  # noqa: N803
        """Return how unfamiliar each row of X is [n], whatever its columns' ranges.

        The fraction of training rows, kept apart, that are more familiar, where familiar means a
        high density of the conditions; above 1, 1 plus how many nats a row is less familiar than
        the least familiar of those. Ranges, correlations, holes between clusters, categories and
        gaps count; no training row is in the model. See `condens.evaluation.Novelty`.
        """
        self._check_columns(X)
        return self.novelty_(self.encoder_.encode(X, "X")).numpy()

    # Scoring.

    def score(self, X: TableLike, y: TableLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Return R², as scikit-learn defines it: of each target, and the mean of these.

        An entry of y that is NaN was not observed and is left out, and so is a target with
        fewer than two observed entries, if another one has more.
        """
        rows = self.read_rows(X, y, sample_weight).observed("y")
        mean = Predictions(self.network_, rows.condition, flat=False).mean()
        target, weights = rows.target.numpy(), rows.normalised_weights
        seen = ~np.isnan(target)
        counts = seen.sum(0)
        scores = [
            r2_score(
                target[some, dim],
                mean[some, dim],
                sample_weight=None if weights is None else weights.numpy()[some],
            )
            for dim, some in enumerate(seen.T)
            if counts[dim] >= min(2, counts.max())
        ]
        return float(np.mean(scores))

    def score_samples(self, X: TableLike, y: TableLike) -> Array:  # noqa: N803
        """Return the log density of each row of y, of its observed entries where some are NaN.

        That of `predict_dist`, the tail included.
        """
        rows = self.read_rows(X, y)
        return Predictions(self.network_, rows.condition, flat=False).log_prob(rows.target)

    def importance(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        *,
        columns: Columns | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        n_repeats: int = 5,
        random_state: int | np.random.RandomState | None = 0,
    ) -> Importance:
        """Return how much each column of X tells about y, in nats a row, with standard errors.

        The mean drop in log-likelihood when the column is permuted; several in a list are
        permuted together: `columns=["area", ["lat", "lon"]]`. Pass rows that were not used in
        `fit`. See `condens.evaluation.importance`.
        """
        check_is_fitted(self)
        return importance(
            self,
            X,
            y,
            columns=columns,
            sample_weight=sample_weight,
            groups=groups,
            n_repeats=n_repeats,
            seed=draw_seed(random_state),
        )

    def read_rows(self, X: TableLike, y: TableLike, sample_weight: ArrayLike | None = None) -> Rows:  # noqa: N803
        """Return X and y as `network_` reads them, checked against the columns of the fit.

        X encoded [n, C], y in the order of the fit [n, D], NaN where it was not observed.
        """
        self._check_columns(X)
        return self.inputs_.rows(X, y, sample_weight)

    # Plots.

    def plot_history(self, axes: "Axes | None" = None) -> "Axes":
        """Draw the losses of the last fit, on given matplotlib axes or those of a new figure."""
        check_is_fitted(self)
        return self.history_.plot(axes)

    def plot_diagnostics(self, figure: "Figure | SubFigure | None" = None) -> "Figure | SubFigure":
        """Draw the losses of the last fit with the use of the components and signs of trouble."""
        check_is_fitted(self)
        return self.history_.plot_diagnostics(figure)

    def plot_density(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike | None = None,
        *,
        coverages: Sequence[float] = (0.5, 0.9),
        overlay: bool = False,
        axes: "Axes | None" = None,
    ) -> "Axes | Figure | SubFigure":
        """Draw the density for one row of X, with its observed targets if y has them.

        Of several rows with `overlay`, on top of each other. See `Mixture.plot`.
        """
        density = self.predict_dist(X, tail=False)
        truth = None if y is None else self.read_rows(X, y).target
        return density.plot(coverages=coverages, truth=truth, overlay=overlay, axes=axes)

    def plot_slices(
        self,
        X: TableLike,  # noqa: N803
        target: str | int,
        given: str | int,
        values: ArrayLike | None = None,
        *,
        axes: "Axes | None" = None,
    ) -> "Axes":
        """Draw what becomes of one target if another one has some value, for one row of X.

        Args:
            X: one row.
            target: its name or number.
            given: the other target.
            values: of the other one, up to six; by default its quantiles at 10, 50 and 90 %.
            axes: where to draw; by default on a new figure of pyplot.
        """
        from condens.plots import slices
        from condens.plots.grids import resolve

        density = self.predict_dist(X, tail=False)
        known = resolve("given", given, density)
        return slices(density, resolve("target", target, density), known, values, axes=axes)

    def plot_effect(
        self,
        X: TableLike,  # noqa: N803
        column: str | int,
        target: str | int | None = None,
        *,
        y: TableLike | None = None,
        values: ArrayLike | None = None,
        quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        axes: "Axes | None" = None,
    ) -> "Axes":
        """Draw the density of a target along one column of X, the others as they are.

        Args:
            X: one row, or several, whose densities are averaged (a partial dependence); 30 at
                most, evenly chosen.
            column: its name or number.
            target: its name or number; not needed if there is one only.
            y: the targets of X, to draw as dots.
            values: of the column; by default through the range of the fit, or of 98 % of the
                rows if X has twenty or more.
            quantiles: to draw as lines.
            axes: where to draw; by default on a new figure of pyplot.
        """
        from condens.plots import effect
        from condens.plots.grids import resolve

        self._check_columns(X)
        scaling = self.network_.condition_scaling
        assert scaling is not None  # of every network that this class builds
        sweep = Sweep.of(self.encoder_, X, column, values, (scaling.lower, scaling.upper))
        found = Predictions(self.network_, sweep.condition, flat=False)
        found.warn_of_extrapolation(self.encoder_.labels)
        densities = found.densities(tail=False)
        dim = resolve("target", target, densities)
        along = sweep.average(densities.marginal(dim))
        seen = None if y is None else (sweep.column, self.read_rows(X, y).target[:, dim])
        return effect(
            along, sweep.values, name=sweep.name, quantiles=quantiles, data=seen, axes=axes
        )

    def plot_predictions(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        target: str | int | None = None,
        *,
        coverage: float = 0.9,
        axes: "Axes | None" = None,
    ) -> "Axes":
        """Draw predicted medians and intervals of a target against its observed values."""
        from condens.plots import predictions

        observed = self.read_rows(X, y).target
        found = self.predict_dist(X, tail=False)
        return predictions(found, observed, target, coverage=coverage, axes=axes)

    def plot_calibration(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
        *,
        figure: "Figure | SubFigure | None" = None,
    ) -> "Figure | SubFigure":
        """Draw how calibrated the densities are on rows that were not used in `fit`.

        Histograms of the probability integral transform of each target, and the coverage of
        intervals and of joint highest-density regions asked against observed, with the bands of
        a calibrated model.
        """
        from condens.plots import calibration_figure

        rows = self.read_rows(X, y, sample_weight)
        found = Predictions(self.network_, rows.condition, flat=False)
        uniform, regions = found.calibration(rows.target)
        return calibration_figure(
            uniform,
            regions=regions if self.n_targets_ > 1 else None,
            names=self.target_names_,
            weights=rows.normalised_weights,
            figure=figure,
        )

    # Model files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model to one file that holds no code; see `condens.persistence`."""
        check_is_fitted(self)
        fitted = Fitted(
            self.inputs_,
            self.network_,
            self.history_,
            self.baselines_,
            self.novelty_,
            self.seed_,
            getattr(self, "summary_", None),
            getattr(self, "calibration_", None),
            self.notes_,
        )
        document, tensors = to_dict(self.get_params(deep=False), fitted)
        write(path, {"kind": "regressor", **document}, tensors)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: Callable[[int], nn.Module] | None = None,
    ) -> Self:
        """Return the model of a file.

        A file holds no code: if the model was fitted with a `backbone`, pass that function.
        """
        document, tensors = read(path)
        with naming(path):
            kind = document.pop("kind", None)
            if kind != "regressor":
                raise ModelFileError(
                    "its kind",
                    got=f"is {short(kind)}",
                    expected="a regressor was expected",
                    fix="Open it with condens.load.",
                )
            parameters, fitted = from_dict(document, tensors, backbone)
        return cls(**parameters)._set(fitted)

    # Learned attributes.

    @property
    def n_components_(self) -> int:
        """The number of components, of each member."""
        return n_components_of(self.network_)

    @property
    def n_bins_(self) -> int:
        """The linear pieces in which the network reads every number."""
        return n_bins_of(self.network_)

    @property
    def shortcut_(self) -> bool:
        """Whether the network has a linear part."""
        return has_shortcut(self.network_)

    @property
    def dropout_(self) -> float:
        """The dropout with which the network was trained."""
        return dropout_of(self.network_)

    @property
    def unused_columns_(self) -> list[str] | list[int]:
        """The columns of X that the network does not read."""
        names, places = self.encoder_.feature_names, self.encoder_.places
        unused = set(self.network_.unused)
        found = [i for i, place in enumerate(places) if unused.issuperset(place)]
        return found if names is None else [names[i] for i in found]

    @property
    def n_iter_(self) -> int:
        """The number of epochs."""
        return len(self.history_.epochs)

    @property
    def loss_curve_(self) -> list[float]:
        """The training loss of every epoch."""
        return [epoch.train_nll for epoch in self.history_.epochs]

    @property
    def encoder_(self) -> TableEncoder:
        """What turns X into the columns that the network reads."""
        return self.inputs_.encoder

    @property
    def transforms_(self) -> tuple[Transform, ...]:
        """The transform of each target."""
        return self.inputs_.transforms

    @property
    def n_targets_(self) -> int:
        """The number of columns of y."""
        return len(self.transforms_)

    @property
    def target_names_(self) -> tuple[str, ...] | None:
        """The names of the columns of y."""
        return self.inputs_.target_names

    @property
    def n_features_in_(self) -> int:
        """The number of columns of X."""
        return self.inputs_.encoder.n_features

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The names of the columns of X, an attribute only if all of them are text."""
        names = self.inputs_.encoder.feature_names
        if names is None:
            raise AttributeError("X had no feature names in fit.")
        return np.array(names, dtype=object)

    # Scikit-learn's contract.

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.target_tags.multi_output = True
        return tags

    # Shared by the methods above.

    def _check_columns(self, X: TableLike) -> None:  # noqa: N803
        """Refuse, in scikit-learn's words, other columns than those fitted; X is not read."""
        check_is_fitted(self)
        # A lazy frame, which scikit-learn would call empty, is refused where it is read; so are
        # other columns of pyarrow's tables, not all of which scikit-learn knows.
        lazy = is_frame(X) and not hasattr(X, "__len__")
        if getattr(X, "ndim", 2) != 2 or lazy or hasattr(type(X), "column_names"):
            return
        try:
            validate_data(self, X, reset=False, skip_check_array=True)
        except ValueError as error:
            message = str(error).rstrip(".\n ")
            raise ShapeError(
                f"{message}. Pass {self.encoder_.description}, or fit again."
            ) from None
        except (TypeError, LookupError):  # not a table: refused by name where it is read
            pass

    def _predictions(self, X: TableLike) -> Predictions:  # noqa: N803
        self._check_columns(X)
        found = Predictions(self.network_, self.encoder_.encode(X, "X"), self.inputs_.flat)
        found.warn_of_extrapolation(self.encoder_.labels)
        return found

    def _calibration(self) -> Calibration:
        check_is_fitted(self)
        if not hasattr(self, "calibration_"):
            raise ArgumentError(
                "the model",
                got="is not calibrated",
                expected="regions are calibrated on rows the model was not fitted to",
                fix="Call calibrate(X, y) with such rows, or fit with calibration_fraction=0.1.",
            )
        return self.calibration_

    def _calibrate(self, rows: Rows, groups: Tensor | None) -> Self:
        found = Predictions(self.network_, rows.condition.double(), flat=False)
        self.calibration_ = Calibration.of_parts(found.pairs(rows.target), groups)
        return self

    def _set(self, fitted: Fitted) -> Self:
        """Take what a fit has learned, at once, so that no signal comes between."""
        learned = {f"{name}_": v for name, v in fitted._asdict().items() if v is not None}
        learned["notes_"] = {**fitted.notes}  # one that can be added to
        for name in ("calibration_", "held_out_", "summary_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(learned)
        return self

    def _fit(
        self,
        parameters: dict[str, Any],
        table: tuple[Any, Any, Any],
        groups: ArrayLike | None,
        validation_data: Any,
        *,
        keep: bool,
    ) -> Self:
        """Fit to X, y and weights with checked parameters, or leave the model as it was.

        With `keep` training continues with the network, the columns and the scales of the model.
        """
        # With the same seed the same rows are held out again, if training continues with these.
        drawn = Group.current(parameters["device"]).agree(draw_seed(self.random_state))
        seed = self.seed_ if keep else drawn
        if keep:
            self._check_columns(table[0])
            inputs = self.inputs_
            given = inputs.rows(Table.read_compact(table[0], "X"), *table[1:])
            given = inputs.supported(given)
            asked = choose_transforms(
                self.target_transform, inputs.labels, inputs.transforms.__getitem__
            )
        else:
            inputs, given = Inputs.fit(*table, self.target_transform)
            asked = inputs.transforms
        architecture = self._architecture(parameters, replace(inputs, transforms=asked))
        if keep:
            architecture.check_unchanged(self.network_, parameters["n_components"])
        default = partial(default_settings, n_members=parameters["n_members"])
        held_out = combine_settings(parameters, default(len(given)))
        division = divide(
            given,
            None if groups is None else read_groups(groups, len(given)),
            splitter=parameters["splitter"],
            calibration_fraction=parameters["calibration_fraction"],
            validation_fraction=held_out.validation_fraction,
            validation=None if validation_data is None else inputs.validation(validation_data),
            seed=seed,
            adjusts=_adjusts(held_out, validation_data),
            n_members=parameters["n_members"],
            again=parameters["warm_start"] or parameters["directory"] is not None,
        )
        del given  # a copy of the table, once rows are held out
        return self._learn(parameters, inputs, architecture, division, seed, keep=keep)

    def _check_resumable(self, parameters: dict[str, Any], *, keep: bool) -> None:
        """Refuse a directory that no later fit could go on in."""
        directory = parameters["directory"]
        faults = (
            (
                keep,
                "in a fit that continues with a fitted network",
                "a run in a directory starts with a new network",
                "Leave it out, or pass warm_start=False.",
            ),
            (
                not isinstance(self.random_state, Integral),
                f"with random_state={self.random_state!r}",
                "a fit that can be resumed needs the same seed again",
                "Pass a whole number, such as random_state=0.",
            ),
        )
        for wrong, got, expected, fix in faults:
            if directory is not None and wrong:
                raise ArgumentError(
                    "directory", got=f"is {directory!r} {got}", expected=expected, fix=fix
                )

    def _architecture(self, parameters: dict[str, Any], inputs: Inputs) -> Architecture:
        return Architecture(
            n_columns=inputs.encoder.columns,
            transforms=inputs.transforms,
            categories=inputs.encoder.categories,
            names=inputs.target_names,
            **{name: parameters[name] for name in OPTION_NAMES},
        )

    def _learn(
        self,
        parameters: dict[str, Any],
        inputs: Inputs,
        architecture: Architecture,
        division: Division,
        seed: int,
        *,
        keep: bool = False,
        stream: Stream | None = None,
    ) -> Self:
        """Train on rows that were divided, or on a stream of which they are a sample."""
        default = partial(default_settings, n_members=parameters["n_members"])
        references = self._references(inputs, division.rows, keep=keep)
        settings = combine_settings(parameters, default(len(division.rows)))
        settings = replace(settings, seed=seed, start="keep" if keep else settings.start)
        streamed: dict[str, Any] = {}
        if stream is not None:
            own = combine_settings(parameters, default(stream.n_rows))
            streamed = {"stream": stream, "stream_settings": replace(own, seed=seed)}
        with gradients(), interruption() as interrupted:
            try:
                network, history = self._train(
                    parameters, settings, division, None if keep else architecture, streamed
                )
            except TrainingError as error:
                raise TrainingError(error.reason, outcome=UNCHANGED) from None
        stopped = interrupted.is_set() or history.stopped == "interrupted"
        if stopped and history.best_epoch < 0:
            raise KeyboardInterrupt(
                f"fit was interrupted {how_far(history)}. The model is as it was."
            )
        history.rows_left_out = division.rows_left_out
        # In double precision a row has the same density in every batch.
        network = network.cpu().double().eval()
        _, target, weights = division.rows
        wide = network.tail_around(target, weights)
        reach = network.reach_of(target, weights)
        if keep and references[0] is self.baselines_:
            if self.network_.tail is not None:
                wide = copy.deepcopy(self.network_.tail)
            if self.network_.limit is not None:
                reach = self.network_.limit.reach
        history.adjustment = set_adjustment(network, division.adjustment, settings, wide, reach)
        stores = parameters["store_summary"]
        summary = self._summary(inputs, division.rows, keep=keep) if stores else None
        self._set(Fitted(inputs, network, history, *references, seed, summary))
        if stopped:
            raise KeyboardInterrupt(f"fit was interrupted {how_far(history)}. The model has them.")
        if division.calibration is not None:
            self._calibrate(division.calibration, division.calibration_groups)
        # Last: where warnings are errors, the fit is not lost. Some data need one component only,
        # which is no news if nobody chose their number.
        if Group.current(parameters["device"]).first:
            history.warn(
                stacklevel=caller_level(),
                ignore=UNNEEDED if self.n_components is None else (),
            )
        return self

    def _references(self, inputs: Inputs, rows: Rows, *, keep: bool) -> tuple[Baselines, Novelty]:
        """Return what the model is judged by; in a model that goes on, of the most rows so far."""
        if keep and len(rows) < self.baselines_.n_rows:
            return self.baselines_, self.novelty_
        condition, target, weights = rows
        encoder, names = inputs.encoder, inputs.target_names
        codes = encoder.categories
        return (
            Baselines.fit(condition, target, weights, inputs.transforms, codes, names),
            Novelty.fit(condition, weights, codes, encoder.gaps),
        )

    def _summary(self, inputs: Inputs, rows: Rows, *, keep: bool) -> Summary:
        """Return a summary of the rows; in a model that goes on, of the most rows so far."""
        known: Summary | None = getattr(self, "summary_", None) if keep else None
        if known is not None and len(rows) < known.n_rows:
            return known
        return Summary.of(rows, inputs.encoder)

    def _train(
        self,
        parameters: dict[str, Any],
        settings: Settings,
        division: Division,
        architecture: Architecture | None,
        streamed: dict[str, Any],
    ) -> tuple[DensityNetwork, History]:
        """Train new networks, or, without an architecture, a copy of the one that is there."""
        device, directory = parameters["device"], parameters["directory"]
        rows, validation = division.rows.to(device), division.validation
        validation, folds = None if validation is None else validation.to(device), division.folds
        generator = Generator().manual_seed(settings.seed)
        count = streamed["stream"].n_rows if streamed else len(rows)
        n_components = parameters["n_components"] or default_components(count)
        if architecture is not None and n_components == "auto":
            largest = architecture.network(MAX_COMPONENTS, generator=generator).to(device)
            compared, others = validation, rows
            if folds is not None:
                others, compared = (rows.take(part) for part in (folds != 0, folds == 0))
            chosen = reduce_components(
                largest,
                others,
                settings,
                validation=compared,
                directory=directory,
                callbacks=parameters["callbacks"],
                progress=parameters["verbose"],
            )
            if architecture.n_members == 1 and not streamed:
                return chosen.network, chosen.history
            n_components = chosen.network.head.n_components
            directory = None if directory is None else Path(directory) / "members"
        options: dict[str, Any] = {
            "validation": validation,
            "folds": folds,
            "directory": directory,
            "callbacks": parameters["callbacks"],
            "progress": parameters["verbose"],
        }
        if architecture is not None:
            return architecture.train(
                n_components,
                rows,
                settings,
                generator=generator,
                device=device,
                more_components=parameters["n_components"] is None,
                **streamed,
                **options,
            )
        alone = copy.deepcopy(self.network_).float().to(device)
        return alone, train(alone, rows, settings, warn=False, **options)
