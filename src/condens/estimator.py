"""`MDNRegressor`: the joint density of the targets behind scikit-learn's `fit`."""

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from condens.conformal import Calibration, Region
from condens.data import Rows
from condens.errors import ArgumentError, message
from condens.nn import DensityNetwork, Ensemble, MixtureNetwork
from condens.training import History, Settings, choose_components, train

Array = NDArray[np.float64]

# Rows whose densities exist at a time where only numbers taken from them are asked for.
BLOCK = 5000


class MDNRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A mixture density network: p(y | x) as a Gaussian mixture with full covariances.

    Args:
        n_components: of the mixture; "auto" finds how many the data ask for, at several
            times the cost.
        covariance: `full`, `diagonal`, `isotropic`, `tied` or `low_rank`.
        width, depth: of the network's hidden layers.
        dropout: share of a hidden layer's outputs set to zero in training.
        n_members: networks whose densities are averaged.
        target_transform: for targets that are not any real number: "positive", "count",
            "integer", "unit" or (lower, upper), for all targets, as a list with one for each,
            or as {name: …}; "auto" proposes from the data, see `target_transform_`.
        calibration_fraction: of the rows, kept from training for `predict_region`.
        backbone: a function from the number of condition columns to a module that maps them
            to features [b, F] and has F as its attribute `features`; in place of the MLP.
        settings: how to train, see `condens.training.Settings`; its seed is drawn from
            `random_state`.
        warm_start: go on from the last fit's network instead of beginning anew.
        device: where to compute.
        verbose: show progress.
        random_state: a seed, for the same bytes in every fit.

    Attributes:
        network_: the fitted network.
        history_: what happened in training.
        target_transform_: the map of each target.
        n_targets_, target_names_: the columns of y; the names are None if it had none.
        n_features_in_, feature_names_in_: the columns of X.

    An entry of y that is NaN was not observed: its row counts with the exact density of its
    other entries. Columns of X may be numbers, booleans or categories, and may have missing
    values.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X @ [[1.0, 0.0], [1.0, 2.0]] + 0.1 * rng.normal(size=(300, 2))
    >>> model = MDNRegressor(random_state=0, settings=Settings(epochs=30)).fit(X, y)
    >>> model.predict_dist(X[:5])
    GaussianMixture(batch_shape=[5], components=10, dimensions=2, covariance='full')
    """

    network_: DensityNetwork
    history_: History
    target_names_: tuple[str, ...] | None
    calibration_: Calibration

    def __init__(
        self,
        n_components: int | Literal["auto"] = 10,
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
        device: str | None = None,
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
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    # Fitting.

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Fit to rows of X, [n, F], and y, [n] or [n, D].

        Arrays, lists, tensors, pandas or polars frames. Rows of weight zero are left out.
        """
        keep = self.warm_start and self.__sklearn_is_fitted__()
        return self._fit(X, y, sample_weight, keep, self.settings)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Go once over rows, with none held out; the first call's rows give the scales too."""
        given = self.settings or Settings()
        settings = replace(
            given,
            epochs=1,
            schedule="constant",
            warmup_steps=0,
            average=0.0,
            validation_share=0.0,
            learning_rate=STREAM * given.learning_rate,
        )
        return self._fit(X, y, sample_weight, self.__sklearn_is_fitted__(), settings)

    def calibrate(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Prepare `predict_region` with rows that were not used in `fit`."""
        self._calibrate(self._rows(X, y, None, reset=False))
        return self

    # Predicting.

    def predict_dist(self, X: Any) -> Any:  # noqa: N803
        """Return the joint densities of the targets, a batch of n, in y's own units.

        A `GaussianMixture`; a `LowRankMixture` for the covariance `low_rank`, a
        `TransformedMixture` where a target is transformed.
        """
        return self._mixture(self._condition(X))

    def predict(
        self,
        X: Any,  # noqa: N803
        return_std: bool = False,
        return_cov: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Return the means, [n] or [n, D] as y was.

        With `return_std` the standard deviations too, of the same shape; with `return_cov`
        the covariances of the targets of each row, [n, D, D].
        """
        if return_std and return_cov:
            came, expected = "are both true", "one or the other was expected"
            remedy = "The diagonal of the covariance holds the squares of the deviations."
            raise ArgumentError(message("return_std and return_cov", came, expected, remedy))
        if return_std:
            mean, spread = self._each(X, lambda part: (part.mean, part.stddev))
            return self._shaped(mean), self._shaped(spread)
        if return_cov:
            mean, spread = self._each(X, lambda part: (part.mean, part.covariance_matrix))
            return self._shaped(mean), spread.numpy()
        return self._shaped(self._each(X, lambda part: (part.mean,))[0])

    def predict_quantiles(
        self,
        X: Any,  # noqa: N803
        quantiles: Any = (0.05, 0.5, 0.95),
    ) -> Array:
        """Return quantiles of each target alone, [n, Q] or [n, D, Q]."""
        levels = torch.as_tensor(np.atleast_1d(np.asarray(quantiles, dtype=np.float64)))

        def ask(part: Any) -> tuple[Tensor]:
            each = [part.quantile(levels[:, None], dim) for dim in range(part.dimensions)]
            return (torch.stack(each, 1).permute(2, 1, 0),)

        return self._shaped(self._each(X, ask)[0], axis=1)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:  # noqa: N803
        """Return intervals that the model gives this probability, [n, 2] or [n, D, 2].

        For each target alone, with equal tails; `predict_region` has calibrated ones.
        """

        def ask(part: Any) -> tuple[Tensor]:
            ends = [part.marginal(dim).interval(coverage) for dim in range(part.dimensions)]
            return (torch.stack([torch.cat(pair, -1) for pair in ends], 1),)

        return self._shaped(self._each(X, ask)[0], axis=1)

    def predict_region(self, X: Any, coverage: float = 0.9) -> Region:  # noqa: N803
        """Return regions of high density that hold this share of new targets.

        Guaranteed on average over rows like those of `calibrate`, be the model right or not;
        with intervals for each target alone. See `condens.conformal.Region`.
        """
        check_is_fitted(self)
        if not hasattr(self, "calibration_"):
            expected = "a region is calibrated on rows the model was not fitted to"
            remedy = "Call calibrate(X, y) with such rows, or fit with calibration_fraction=0.1."
            raise ArgumentError(message("the model", "is not calibrated", expected, remedy))
        generator = Generator().manual_seed(self.seed_)
        return self.calibration_.region(self.predict_dist(X), coverage, generator=generator)

    def sample(
        self,
        X: Any,  # noqa: N803
        n_samples: int = 1,
        random_state: Any = None,
    ) -> Array:
        """Draw targets, [S, n] or [S, n, D]."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = Generator().manual_seed(seed)
        drawn = self.predict_dist(X).sample((n_samples,), generator=generator)
        return self._shaped(drawn, axis=2)

    def score_samples(self, X: Any, y: Any) -> Array:  # noqa: N803
        """Return the log density of each row of y; of its observed entries, if some are NaN."""
        rows = self._rows(X, y, None, reset=False)
        parts = [
            partial_log_prob(self._mixture(condition), target)
            for condition, target in zip(
                rows.condition.split(BLOCK), rows.target.split(BLOCK), strict=True
            )
        ]
        return torch.cat(parts).numpy()

    def plot_history(self, axes: Any = None) -> Any:
        """Draw the losses of the last fit, on given matplotlib axes or new ones."""
        check_is_fitted(self)
        return self.history_.plot(axes)

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

    def _fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any,
        keep: bool,
        settings: Settings | None,
    ) -> Self:
        self._check_parameters()
        rows = self._rows(X, y, sample_weight, reset=not keep).observed()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        held_out = None
        if self.calibration_fraction:
            rows, held_out = rows.split(self.calibration_fraction, seed)
        settings = replace(settings or Settings(), seed=seed)
        if keep:
            network: DensityNetwork = copy.deepcopy(self.network_).float()
            history = train(network, rows, replace(settings, start="keep"), progress=self._progress)
        else:
            network, history = self._train(rows, settings)
        # In double precision a row has the same density in whatever batch it comes.
        self.network_, self.history_ = network.double().eval(), history
        self.seed_ = seed
        self.__dict__.pop("calibration_", None)
        if held_out is not None:
            self._calibrate(held_out)
        return self

    def _train(self, rows: Rows, settings: Settings) -> tuple[DensityNetwork, History]:
        """Make networks and fit them; the number of components too, where it is asked for."""
        count: Any = self.n_components
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            if count == "auto":
                chosen = choose_components(self._make, rows, settings, progress=self._progress)
                if self.n_members == 1:
                    return chosen.network, chosen.history
                count = chosen.network.head.components
            members = [self._make(count) for _ in range(self.n_members)]
        network = members[0] if self.n_members == 1 else Ensemble(members)
        return network, train(network, rows, settings, progress=self._progress)

    def _make(self, components: int) -> MixtureNetwork:
        """Return a network that is not trained."""
        encoder, targets = self.encoder_, self.n_targets_
        options: dict[str, Any] = {"names": self.target_names_, "maps": self._maps}
        if self.backbone is None:
            network = MixtureNetwork.of(
                encoder.columns,
                targets,
                components=components,
                structure=self.covariance,
                width=self.width,
                depth=self.depth,
                dropout=self.dropout,
                categories=encoder.categories,
                **options,
            )
        else:
            backbone: Any = self.backbone(encoder.columns)
            network = MixtureNetwork(
                backbone,
                HEADS[self.covariance](backbone.features, targets, components),
                condition_columns=encoder.columns,
                condition_codes=len(encoder.categories),
                **options,
            )
        return network.to(self.device)

    def _calibrate(self, rows: Rows) -> None:
        parts = [self._mixture(part) for part in (rows.condition,)]
        generator = Generator().manual_seed(self.seed_ + 1)
        self.calibration_ = Calibration.of(parts[0], rows.target, generator=generator)
