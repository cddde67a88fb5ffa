"""`MDNRegressor`: the joint density of the targets behind scikit-learn's `fit`."""

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from condens import persistence
from condens.data import Rows
from condens.errors import (
    ArgumentError,
    CondensError,
    ModelFileError,
    TrainingError,
    UnusedComponentsWarning,
)
from condens.estimator import document as regressor_file
from condens.estimator.construction import (
    check_kept,
    check_parameter,
    check_parameters,
    make_network,
    make_networks,
)
from condens.estimator.inputs import Tables
from condens.estimator.predictions import BLOCK, Array, Predictions, draw_seed
from condens.evaluation.conformal import Calibration, Region
from condens.nn import DensityNetwork
from condens.persistence.container import naming
from condens.persistence.header import reason, short
from condens.training import History, Settings, default_components, default_settings, train
from condens.training.interruption import how_far, interruption
from condens.training.loop import KEPT, gradients
from condens.training.selection import MAX_COMPONENTS, reduce_components

# The rate of `partial_fit`, a share of that of `fit`, which falls to zero.
STREAM = 0.1
# How wide a component may be for moments, in deviations of the logarithms of the fit's targets.
WIDEST = 3.0


class MDNRegressor(Tables, Predictions, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A mixture density network: p(y | x) as a Gaussian mixture with full covariances.

    Args:
        n_components: of the mixture; by default what suits the number of rows, see
            `condens.training.default_components`. "auto" finds how many the data ask for, at
            several times the cost.
        covariance: `full`, `diagonal`, `isotropic`, `tied` or `low_rank`.
        width, depth: of the network's hidden layers.
        dropout: share of a hidden layer's outputs set to zero in training.
        n_members: networks whose densities are averaged.
        target_transform: for constrained targets: "positive", "count", "integer", "unit", a
            tuple (lower, upper) or a `condens.transforms.Transform`, for all targets, in a list
            with one for each, or as {name: …}. "auto" proposes what suits the data, and says so.
        calibration_fraction: share of the rows kept from training for `calibrate`, where each
            counts once.
        backbone: makes, from the number of condition columns, a module that maps them to
            features [b, F] and has F as attribute `features`; in place of an MLP.
        settings: how to train, see `condens.training.Settings`; by default what suits the
            number of rows, `condens.training.default_settings`. The seed is drawn from
            `random_state`.
        warm_start: let `fit` go on from the network and the scales of the last one. Give it the
            same rows then, or some that are all new: those held out before stay held out.
        verbose: show progress.
        random_state: a seed, for the same bytes in every fit.

    Attributes:
        network_: the fitted network.
        history_: what happened in training.
        transforms_: what `target_transform` came to, one map for each target.
        n_targets_, target_names_: the columns of y; the names are None if it had none.
        calibration_: scores of the rows of `calibrate`, where there were some.
        n_features_in_, feature_names_in_: the columns of X.

    An entry of y that is NaN was not observed: its row counts with the exact density of its
    other entries. Columns of X may be numbers, booleans or, in a data frame, categories, and
    all of them may have missing values.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X @ [[1.0, 0.0], [1.0, 2.0]] + 0.1 * rng.normal(size=(300, 2))
    >>> model = MDNRegressor(random_state=0, settings=Settings(epochs=20)).fit(X, y)
    >>> model.predict_dist(X[:5])
    GaussianMixture(batch_shape=[5], n_components=3, dimensions=2, covariance='full')
    """

    network_: DensityNetwork
    history_: History
    calibration_: Calibration
    seed_: int

    def __init__(
        self,
        n_components: int | Literal["auto"] | None = None,
        *,
        covariance: str = "full",
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.0,
        n_members: int = 1,
        target_transform: Any = None,
        calibration_fraction: float = 0.0,
        backbone: Callable[[int], nn.Module] | None = None,
        settings: Settings | None = None,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.width = width
        self.depth = depth
        self.dropout = dropout
        self.n_members = n_members
        self.target_transform = target_transform
        self.calibration_fraction = calibration_fraction
        self.backbone = backbone
        self.settings = settings
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    # Fitting.

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Fit to rows of X, [n, F], and y, [n] or [n, D].

        Arrays, lists, tensors, pandas or polars frames. Rows of weight zero are left out.

        Ctrl-C ends it after the batch by `KeyboardInterrupt`, so that searches and loops around
        it end too. The model keeps the best weights so far, ready to predict; before the first
        epoch has made any it is left as it was.
        """
        check_parameter("warm_start", self.warm_start)
        keep = bool(self.warm_start) and self.__sklearn_is_fitted__()
        return self._fit(X, y, sample_weight, settings=self.settings, keep=keep)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Go once over rows, with none held out; the first call's rows give the scales too."""
        check_parameter("settings", self.settings)
        given = self.settings or Settings()
        settings = replace(
            given,
            epochs=1,
            schedule="constant",
            warmup_steps=0,
            average=0.0,
            validation_fraction=0.0,
            learning_rate=STREAM * given.learning_rate,
        )
        keep = self.__sklearn_is_fitted__()
        return self._fit(X, y, sample_weight, settings=settings, keep=keep)

    def calibrate(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Prepare `predict_region` with rows that were not used in `fit`, each counting once.

        And `predict_interval(…, calibrated=True)`.
        """
        rows = self._rows(X, y, None, reset=False)
        self._check_support(rows.target)
        self._calibrate(rows)
        return self

    # Predicting, beside what `Predictions` has.

    def predict_region(self, X: Any, coverage: float = 0.9) -> Region:  # noqa: N803
        """Return regions of high density that hold this share of new targets.

        Guaranteed on average over rows like those of `calibrate`, be the model right or not;
        with intervals for each target alone. See `condens.evaluation.Region`.
        """
        calibration = self._calibration()
        return calibration.region(self.predict_dist(X), coverage)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return R², as scikit-learn has it: of each target, and the mean of these.

        An entry of y that is NaN was not observed and is left out, and so is a target with
        fewer than two observed entries, if another one has more.
        """
        rows = self._rows(X, y, sample_weight, reset=False).observed("y")
        blocks = rows.condition.split(BLOCK)
        mean = torch.cat([self._for_moments(self._densities(some)).mean for some in blocks])
        seen, shares = ~rows.target.isnan(), rows.shares

        def r2(at: Any) -> float:
            """Return R² of some rows, or of some rows of a target."""
            weights = None if shares is None else shares[at[0]]
            return float(r2_score(rows.target[at].numpy(), mean[at].numpy(), sample_weight=weights))

        if bool(seen.all()):
            return r2((slice(None),))
        counts = seen.sum(0)
        told = counts > min(1, int(counts.max()) - 1)
        each = [r2((seen[:, dim], dim)) for dim in told.nonzero().flatten().tolist()]
        return sum(each) / len(each)

    def score_samples(self, X: Any, y: Any) -> Array:  # noqa: N803
        """Return the log density of each row of y; of its observed entries, where some are NaN."""
        rows = self._rows(X, y, None, reset=False)
        pairs = zip(rows.condition.split(BLOCK), rows.target.split(BLOCK), strict=True)
        each = [self._densities(some).observed_log_prob(target) for some, target in pairs]
        scores: Array = torch.cat(each).numpy()
        return scores

    def plot_history(self, axes: Any = None) -> Any:
        """Draw the losses of the last fit, on given matplotlib axes or those of a new figure."""
        check_is_fitted(self)
        return self.history_.plot(axes)

    # Model files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model to one file that holds no code; see `condens.persistence`."""
        check_is_fitted(self)
        document, tensors = regressor_file.to_document(self)
        persistence.write(path, {"kind": "regressor", **document}, tensors)

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
        document, tensors = persistence.read(path)
        with naming(path):
            if document.get("kind") != "regressor":
                raise ModelFileError(
                    "its kind",
                    got=f"is {short(document.get('kind'))}",
                    expected="a regressor was expected",
                    fix="Open it with condens.load.",
                )
            try:
                model: Self = regressor_file.from_document(cls, document, tensors, backbone)
            except CondensError:
                raise
            except Exception as error:  # a document may be wrong in any way
                raise ModelFileError(
                    "its document",
                    got=f"cannot be that of a regressor ({reason(error)})",
                    expected="one that condens saved was expected",
                ) from error
        return model

    # Scikit-learn's contract.

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.target_tags.multi_output = True
        return tags

    # What the methods above share.

    def _fit(self, *table: Any, settings: Settings | None, keep: bool) -> Self:
        """Fit to X, y and weights, or leave the model as it was."""
        before = dict(self.__dict__)
        try:
            with gradients():
                self._fit_rows(*table, settings=settings, keep=keep)
            by_default = self.n_components is None
            self.history_.warn(
                stacklevel=3, ignore=(UnusedComponentsWarning,) if by_default else ()
            )
        except TrainingError as error:
            self.__dict__ = before
            kept = "The model is as it was before; what to lower or add is in settings=Settings(…)."
            raise TrainingError(str(error).replace(KEPT, kept)) from None
        except BaseException as error:
            trained = self.__dict__.get("network_") is not before.get("network_")
            if not (trained and isinstance(error, KeyboardInterrupt)):
                self.__dict__ = before
            raise
        return self

    def _fit_rows(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any,
        *,
        settings: Settings | None,
        keep: bool,
    ) -> None:
        check_parameters(self)
        if keep:
            check_kept(self)
        given = self._rows(X, y, sample_weight, reset=not keep)
        self._check_support(given.target)
        rows, held_out = given.observed("y"), None
        # With the same seed the same rows are held out again, if training goes on with the same.
        drawn = draw_seed(self.random_state)
        seed = self.seed_ if keep else drawn
        if self.calibration_fraction:
            rows, held_out = rows.split(self.calibration_fraction, seed)
        settings = default_settings(len(rows)) if settings is None else settings
        with interruption() as asked:
            if keep:
                network: DensityNetwork = copy.deepcopy(self.network_).float()
                settings = replace(settings, seed=seed, start="keep")
                history = train(network, rows, settings, progress=self.verbose, warn=False)
            else:
                network, history = self._train(rows, replace(settings, seed=seed))
        if asked.is_set() and history.best_epoch < 0:
            told = f"fit was interrupted {how_far(history)}. The model is as it was."
            raise KeyboardInterrupt(told)
        history.rows_left_out = len(given) - len(rows) - len(held_out or ())
        self.__dict__.pop("calibration_", None)
        # In double precision a row has the same density in whatever batch it comes. At once, so
        # that no signal comes between.
        fitted = {"network_": network.double().eval(), "history_": history, "seed_": seed}
        self.__dict__.update(fitted)
        if asked.is_set():
            raise KeyboardInterrupt(f"fit was interrupted {how_far(history)}. The model has them.")
        if held_out is not None:
            self._calibrate(held_out)

    def _train(self, rows: Rows, settings: Settings) -> tuple[DensityNetwork, History]:
        """Make networks and train them; find the number of components, if that is asked for."""
        count: Any = self.n_components or default_components(len(rows))
        generator = Generator().manual_seed(settings.seed)
        if count == "auto":
            largest = make_network(self, MAX_COMPONENTS, generator=generator)
            chosen = reduce_components(largest, rows, settings, progress=self.verbose)
            if self.n_members == 1:
                return chosen.network, chosen.history
            count = chosen.network.head.n_components
        network = make_networks(self, count, generator=generator)
        return network, train(network, rows, settings, progress=self.verbose, warn=False)

    def _calibrate(self, rows: Rows) -> None:
        self.calibration_ = Calibration.of(self._densities(rows.condition), rows.target)

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

    @torch.no_grad()
    def _densities(self, condition: Tensor) -> Any:
        return self.network_(condition)

    def _for_moments(self, densities: Any) -> Any:
        widest = WIDEST * self.network_.target_scaling.scale
        limits = torch.where(
            torch.tensor([own.exponential for own in self.transforms_]), widest, torch.inf
        )
        return densities.narrowed(limits) if bool(limits.isfinite().any()) else densities
