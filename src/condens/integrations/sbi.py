"""condens as the density estimator of sbi: for NPE, NLE and their rounds.

>>> import torch
>>> from sbi.inference import NPE
>>> from sbi.utils import BoxUniform
>>> _ = torch.manual_seed(0)
>>> prior = BoxUniform(-torch.ones(2), torch.ones(2))
>>> theta = prior.sample((300,))
>>> x = theta + 0.1 * torch.randn(300, 2)
>>> inference = NPE(prior, density_estimator=density_estimator(), show_progress_bars=False)
>>> estimator = fit(inference.append_simulations(theta, x), Settings(epochs=20))
>>> posterior = inference.build_posterior(estimator)
>>> posterior.sample((5,), x=torch.zeros(1, 2), show_progress_bars=False).shape
torch.Size([5, 2])
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Literal, ParamSpec

import torch
from torch import Generator, Tensor, nn

from condens.distributions.base import Mixture
from condens.distributions.gaussian import GaussianMixture
from condens.errors import (
    ArgumentError,
    KindError,
    NotPositiveDefiniteError,
    ShapeError,
)
from condens.functional import triangular
from condens.nn import HEADS, MLP, MixtureNetwork
from condens.scalars import as_choice, as_fraction, as_whole
from condens.training import History, Settings, default_components, default_settings, train
from condens.training.diagnostics import UNNEEDED
from condens.training.interruption import how_far, interruption
from condens.training.loop import gradients
from condens.transforms import Real

try:
    from sbi.inference.trainers.nle.nle_base import LikelihoodEstimatorTrainer
    from sbi.inference.trainers.npe.npe_base import PosteriorEstimatorTrainer
    from sbi.neural_nets.estimators.mixture_density_estimator import MixtureDensityEstimator
    from sbi.neural_nets.estimators.mog import MoG
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sbi":
        raise
    raise ImportError(
        "condens.integrations.sbi needs sbi 0.27 or later. Install it: pip install 'condens[sbi]'."
    ) from error


class CondensEstimator(MixtureDensityEstimator):  # type: ignore[misc]
    """A `MixtureNetwork` with the interface of sbi's mixture density estimators.

    Densities and mixtures are in original units: sbi has no z-scoring to undo, and the closed-form
    corrections of NPE-A and NPE-C apply to the prior as it is.

    Args:
        net: from flat conditions [b, C] to densities over flat inputs [b, D].
        input_shape, condition_shape: of one input, D numbers, and of one condition, C numbers.

    Shapes: condition `[B, *condition_shape]`, or `[S, B, *condition_shape]` with the inputs.

    >>> net = MixtureNetwork.of(conditions=3, targets=2)
    >>> estimator = CondensEstimator(net, torch.Size([2]), torch.Size([3]))
    >>> estimator.log_prob(torch.zeros(7, 4, 2), torch.zeros(4, 3)).shape
    torch.Size([7, 4])
    """

    net: MixtureNetwork
    history: History | None = None

    def __init__(
        self, net: MixtureNetwork, input_shape: torch.Size, condition_shape: torch.Size
    ) -> None:
        if net.transforms is not None:
            raise ArgumentError(
                "net",
                got="has transforms",
                expected="sbi's mixtures are Gaussian",
                fix="Leave them out: sbi itself keeps to the bounds of the prior.",
            )
        super().__init__(net, input_shape, condition_shape)

    def mixture(self, condition: Tensor) -> Mixture:
        """Return the densities, with the condition's leading axes as batch shape."""
        self._check_condition_shape(condition)
        flat = _flat(condition, self.condition_shape)
        found = self.net(flat.reshape(-1, flat.shape[-1]))
        rows = torch.arange(len(found)).reshape(flat.shape[:-1])
        return found if rows.dim() == 1 else found[rows]

    def log_prob(self, input: Tensor, condition: Tensor, **_: Any) -> Tensor:  # noqa: A002
        """Return log p(input | condition). Shapes: `[S, B, *input_shape]` → [S, B]."""
        self._check_input_shape(input)
        flat = _flat(input, self.input_shape)
        rows = (1, *condition.shape[: condition.dim() - len(self.condition_shape)])
        # One input for each condition, as MCMC and atomic losses ask: no mixture need be built.
        if len(rows) == 2 and flat.shape[:-1] == rows and not bool(flat.isnan().any()):
            return -self.loss(input[0], condition).unsqueeze(0)
        return self.mixture(condition).log_prob(flat)

    def loss(self, input: Tensor, condition: Tensor, **_: Any) -> Tensor:  # noqa: A002
        """Return −log p of each row, on the fastest path. Shapes: `[B, *input_shape]` → [B]."""
        self._check_input_shape(input)
        self._check_condition_shape(condition)
        return self.net.nll(condition.flatten(1), _flat(input, self.input_shape))

    def sample(self, sample_shape: Sequence[int], condition: Tensor, **_: Any) -> Tensor:
        """Return draws `[*sample_shape, B, *input_shape]`."""
        return self.mixture(condition).sample(sample_shape).unflatten(-1, self.input_shape)

    def sample_and_log_prob(
        self, sample_shape: Sequence[int], condition: Tensor, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Return draws and their log densities, with one pass of the network."""
        mixture = self.mixture(condition)
        drawn = mixture.sample(sample_shape)
        return drawn.unflatten(-1, self.input_shape), mixture.log_prob(drawn)

    def get_uncorrected_mog(self, condition: Tensor) -> MoG:
        """Return the densities as sbi's `MoG`, in original units."""
        return to_mog(self.mixture(condition))


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Makes a `CondensEstimator` for simulations; see `density_estimator`."""

    of: Literal["theta", "x"]
    n_components: int | None
    covariance: str
    width: int
    depth: int
    dropout: float
    embedding_net: nn.Module | None

    def __call__(
        self, theta: Tensor, x: Tensor, num_components: int | None = None
    ) -> CondensEstimator:
        """Return an estimator with scales and initial components from the simulations."""
        estimator = self.make(theta, x, num_components)
        estimator.net.prepare(*self.rows(theta, x))
        return estimator

    def make(
        self,
        theta: Tensor,
        x: Tensor,
        num_components: int | None = None,
        *,
        generator: Generator | None = None,
    ) -> CondensEstimator:
        """Return an estimator of the right shapes; the generator draws its initial weights."""
        for name, given in (("theta", theta), ("x", x)):
            if given.dim() < 2:
                raise ShapeError(
                    name,
                    got=f"has shape {list(given.shape)}",
                    expected="[rows, …] was expected",
                    fix=f"Pass {name}.unsqueeze(1) where each row is one number.",
                )
        condition, target = (x, theta) if self.of == "theta" else (theta, x)
        asked = num_components if self.n_components is None else self.n_components
        n_components = default_components(len(theta)) if asked is None else asked
        shape, condition_shape = target.shape[1:], condition.shape[1:]
        head = HEADS[self.covariance](self.width, shape.numel(), n_components, generator=generator)
        net = MixtureNetwork(
            self._backbone(condition, generator), head, condition_columns=condition_shape.numel()
        )
        return CondensEstimator(net, shape, condition_shape)

    def rows(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the flat condition and target of the network."""
        pair = (x, theta) if self.of == "theta" else (theta, x)
        return pair[0].flatten(1), pair[1].flatten(1)

    def _backbone(self, condition: Tensor, generator: Generator | None) -> nn.Module:
        layers = partial(
            MLP, width=self.width, depth=self.depth, dropout=self.dropout, generator=generator
        )
        if self.embedding_net is None:
            return layers(condition[0].numel())
        embedding = nn.Sequential(
            nn.Unflatten(1, condition.shape[1:]), copy.deepcopy(self.embedding_net), nn.Flatten()
        )
        with torch.no_grad():
            features = embedding.eval()(condition[:2].flatten(1)).shape[1]
        return nn.Sequential(embedding.train(), layers(features))


Options = ParamSpec("Options")


def _refuse_simulations(make: Callable[Options, Builder]) -> Callable[Options, Builder]:
    """Return the function with a clear error where sbi calls it in place of its result."""

    @wraps(make)
    def checked(*given: Options.args, **options: Options.kwargs) -> Builder:
        if given or "num_components" in options:  # the second is how NPE-A calls
            simulations = any(isinstance(argument, Tensor) for argument in given)
            raise KindError(
                "density_estimator",
                got=f"was called with {'simulations' if simulations else repr(given)}",
                expected="it takes its options by name, and sbi calls what it returns",
                fix='Pass density_estimator() to NPE, and density_estimator(of="x") to NLE.',
            )
        return make(*given, **options)

    return checked


@_refuse_simulations
def density_estimator(
    *,
    of: Literal["theta", "x"] = "theta",
    n_components: int | None = None,
    covariance: str = "full",
    width: int = 128,
    depth: int = 2,
    dropout: float = 0.0,
    embedding_net: nn.Module | None = None,
) -> Builder:
    """Return the `density_estimator` argument of sbi's trainers.

    Args:
        of: the variable that the density is over: "theta" for NPE, "x" for NLE.
        n_components: of the mixture; by default NPE-A's number, or one by the number of
            simulations.
        covariance: `full`, `diagonal`, `isotropic`, `tied` or `low_rank`.
        width, depth, dropout: of the network's hidden layers.
        embedding_net: from standardised conditions, in their original shape, to features; a copy
            is trained with the rest.

    >>> from sbi.inference import NLE
    >>> inference = NLE(density_estimator=density_estimator(of="x", n_components=5))
    """
    if embedding_net is not None and not isinstance(embedding_net, nn.Module):
        raise KindError(
            "embedding_net",
            got=f"is {embedding_net!r}",
            expected="a torch.nn.Module was expected",
            fix="Pass an instance, or leave it out.",
        )
    return Builder(
        of=as_choice("of", of, ("theta", "x"), fix="Pass 'theta' for NPE, 'x' for NLE."),
        n_components=None
        if n_components is None
        else as_whole("n_components", n_components, 1, fix="Pass a number such as 10, or None."),
        covariance=as_choice("covariance", covariance, tuple(HEADS), fix="Pass one of these."),
        width=as_whole("width", width, 1, fix="Pass the number of units of a layer, such as 128."),
        depth=as_whole("depth", depth, 1, fix="Pass the number of layers, such as 2."),
        dropout=as_fraction("dropout", dropout, fix="Pass 0 for none, or a fraction such as 0.1."),
        embedding_net=embedding_net,
    )


def fit(
    inference: PosteriorEstimatorTrainer | LikelihoodEstimatorTrainer,
    settings: Settings | None = None,
    *,
    progress: bool | None = None,
) -> CondensEstimator:
    """Train on a trainer's simulations with `condens.training.train` instead of its `train`.

    The trainer keeps the estimator: `build_posterior` and later rounds continue from it. Later
    rounds of NPE need a correction for the proposal: train those with `inference.train()`. Later
    rounds of NLE need none, and are trained on all simulations.

    Args:
        inference: an NPE or NLE made with `density_estimator(…)`, with simulations appended.
        settings: see `Settings`; by default those for the number of simulations. Their seed also
            draws the initial weights.
        progress: show a line; by default where stderr is a terminal.

    Ctrl-C stops after the current batch with `KeyboardInterrupt`; the trainer keeps the best
    weights so far, if there are any.
    """
    builder = _builder(inference)
    theta, x, _ = inference.get_simulations()
    n_components = getattr(inference, "_num_components", None)  # NPE-A's
    settings = default_settings(len(theta)) if settings is None else Settings.given(settings)
    with gradients(), interruption() as asked:
        estimator = builder.make(
            theta, x, n_components, generator=Generator().manual_seed(settings.seed)
        ).to(inference._device)
        history = estimator.history = train(
            estimator.net, builder.rows(theta, x), settings, progress=progress, warn=False
        )
    if not asked.is_set() or history.best_epoch >= 0:
        inference._neural_net = estimator.eval()
    if asked.is_set():
        raise KeyboardInterrupt(f"fit was interrupted {how_far(history)}.")
    history.warn(stacklevel=2, ignore=UNNEEDED if builder.n_components is None else ())
    return estimator


def to_mog(mixture: Mixture) -> MoG:
    """Return a mixture as sbi's `MoG`: the same density, with the same triangular factors.

    Shapes: batch shape [B], or [] for a MoG of one.
    """
    if not isinstance(mixture, Mixture) or not all(isinstance(t, Real) for t in mixture.transforms):
        raise ArgumentError(
            "mixture",
            got=f"is a {type(mixture).__name__}",
            expected="sbi's mixtures are Gaussian",
            fix="Pass one without transforms.",
        )
    if len(mixture.batch_shape) > 1:
        raise ShapeError(
            "mixture",
            got=f"has batch shape {list(mixture.batch_shape)}",
            expected="[B] or [] was expected",
            fix="Index its leading axes, such as mixture[0].",
        )
    rows = mixture if mixture.batch_shape else mixture.expand([1])
    upper = rows.precision_factors
    # A MoG needs finite logits: half the lowest number is still a weight of zero.
    logits = rows.logits.log_softmax(-1).clamp_min(torch.finfo(rows.dtype).min / 2)
    return MoG(logits, rows.means, upper.mT @ upper, upper)


def from_mog(mog: MoG) -> GaussianMixture:
    """Return sbi's `MoG` as a mixture, by the factors that it samples with.

    The precisions of sbi's MDN have 1e-4 more on their diagonals than their factors, so that its
    `log_prob` is not quite a density; that of the result is the density of its samples.
    """
    if not isinstance(mog, MoG):
        raise KindError(
            "mog",
            got=f"is a {type(mog).__name__}",
            expected="sbi's MoG was expected",
            fix="Pass one, such as an estimator's get_uncorrected_mog(condition).",
        )
    upper = mog.precision_factors
    if bool(upper.tril(-1).any()) or not bool((upper.diagonal(dim1=-2, dim2=-1) > 0).all()):
        raise NotPositiveDefiniteError(
            "mog",
            got="has precision_factors that are not upper triangular with a positive diagonal",
            expected="sbi samples by these",
            fix="Pass them as sbi makes them, torch.linalg.cholesky(precisions).mT.",
        )
    return GaussianMixture(mog.logits, mog.means, triangular.pack(upper))


def _builder(inference: Any) -> Builder:
    """Return the builder of a trainer's estimators; refuse trainers that `fit` cannot train."""
    posterior = isinstance(inference, PosteriorEstimatorTrainer)
    if not posterior and not isinstance(inference, LikelihoodEstimatorTrainer):
        raise ArgumentError(
            "inference",
            got=f"is a {type(inference).__name__}",
            expected="sbi's NPE or NLE was expected",
            fix="Pass NPE(…) or NLE(…).",
        )
    builder, of = inference._build_neural_net, "theta" if posterior else "x"
    if not isinstance(builder, Builder) or builder.of != of:
        raise ArgumentError(
            "inference",
            got="has another density_estimator",
            expected=f"one over {of} was expected",
            fix=f"Make it with density_estimator=density_estimator(of={of!r}).",
        )
    rounds = inference._data_round_index
    if not rounds:
        raise ArgumentError(
            "inference",
            got="has no simulations",
            expected="it is trained on these",
            fix="Call append_simulations first.",
        )
    if posterior and max(rounds) > 0:
        raise ArgumentError(
            "inference",
            got=f"is in round {max(rounds) + 1}",
            expected="only the first, drawn from the prior, is trained without a correction",
            fix="Call inference.train().",
        )
    return builder


def _flat(values: Tensor, shape: torch.Size) -> Tensor:
    """Return events of this shape as vectors. Shapes: `[..., *shape]` → [..., N]."""
    return values.reshape(*values.shape[: values.dim() - len(shape)], shape.numel())
