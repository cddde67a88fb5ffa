"""The methods: condens with its defaults, and its peers, each as its authors advise.

A method is fitted to rows and returns densities of further rows: a torch distribution with batch
shape [n] and event shape [D], in the units of the targets.
"""

import ast
import hashlib
import inspect
import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from problems import Array
from tasks import Rows, Task
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints

import condens
from condens import MDNRegressor, inference
from condens.evaluation import Baselines

Predict = Callable[[Any], Distribution]
# Draws that estimate how much of a density lies within bounds.
DRAWS_FOR_MASS = 200
# A draw that is still outside then is put on the bound.
MAX_REDRAWS = 100


class UnsuitedError(Exception):
    """A method cannot, or should not, be tried on a task."""


class Density(Distribution):
    """A density learned by a peer, cut at the bounds of the targets if there are any.

    As sbi does: draws outside are drawn again, and the density is divided by the estimated part
    inside.

    Args:
        context: [n, C], what the peer reads.
        dimensions: D.
        log_density: of values [S, n, D], given the context.
        draw: [S, n, D], given a number S and the context.
        bounds: of all targets.
    """

    arg_constraints = {}  # noqa: RUF012  # torch's name

    def __init__(
        self,
        context: Tensor,
        dimensions: int,
        log_density: Callable[[Tensor, Tensor], Tensor],
        draw: Callable[[int, Tensor], Tensor],
        bounds: tuple[float, float] | None = None,
    ) -> None:
        self.context, self.log_density, self.draw, self.bounds = context, log_density, draw, bounds
        shapes = torch.Size((len(context),)), torch.Size((dimensions,))
        super().__init__(*shapes, validate_args=False)
        self.log_mass = torch.zeros(len(context))
        if bounds:
            inside = self._inside(self.draw(DRAWS_FOR_MASS, context)).double().mean(0)
            self.log_mass = inside.clamp(min=1 / DRAWS_FOR_MASS).log()

    @property
    def support(self) -> constraints.Constraint:
        """All numbers, or those within the bounds."""
        each = constraints.interval(*self.bounds) if self.bounds else constraints.real
        return constraints.independent(each, 1)

    @torch.no_grad()
    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; value [..., n, D] → [..., n]."""
        rows = value.reshape(-1, *self.batch_shape, *self.event_shape)
        found = self.log_density(rows, self.context).double() - self.log_mass
        found = torch.where(self._inside(rows), found, -math.inf) if self.bounds else found
        return found.reshape(value.shape[:-1])

    @torch.no_grad()
    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw [..., n, D]."""
        size = torch.Size(sample_shape).numel()
        drawn = self.draw(size, self.context)
        for _ in range(MAX_REDRAWS if self.bounds else 0):
            outside = ~self._inside(drawn)
            rows = outside.any(0).nonzero().flatten()
            if not len(rows):
                break
            # As many new draws for each row as the row that lacks most.
            fresh = self.draw(int(outside.sum(0).max()), self.context[rows])
            place, row = outside[:, rows].nonzero().T
            rank = outside[:, rows].cumsum(0)[place, row] - 1
            drawn[place, rows[row]] = fresh[rank, row]
        drawn = drawn.clamp(*self.bounds) if self.bounds else drawn
        return drawn.reshape(*sample_shape, *self.batch_shape, *self.event_shape)

    def _inside(self, value: Tensor) -> Tensor:
        low, high = self.bounds or (-math.inf, math.inf)
        return ((value >= low) & (value <= high)).all(-1)


def of_distribution(distribution: Distribution, bounds: tuple[float, float] | None) -> Distribution:
    """Return a distribution cut at bounds, or as it is without any."""
    if bounds is None:
        return distribution
    rows = torch.arange(distribution.batch_shape[0])[:, None]

    def taken(context: Tensor) -> Distribution:
        (places,) = context.T
        if isinstance(distribution, MultivariateNormal):
            parts = distribution.loc[places], distribution.scale_tril[places]
            return MultivariateNormal(parts[0], scale_tril=parts[1])
        return distribution[places]  # a mixture

    return Density(
        rows,
        distribution.event_shape[0],
        lambda value, context: taken(context).log_prob(value),
        lambda size, context: taken(context).sample((size,)),
        bounds,
    )


# Rows as peers read them.


class Numbers:
    """Conditions as numbers: categories become columns of zeros and ones, those of the fit."""

    def __init__(self, X: Any) -> None:  # noqa: N803
        self.columns = list(self._wide(X).columns) if hasattr(X, "columns") else None

    def __call__(self, X: Any) -> Array:  # noqa: N803
        """Return [n, C]."""
        if self.columns is None:
            return np.asarray(X, dtype=float)
        return self._wide(X).reindex(columns=self.columns, fill_value=0).to_numpy(dtype=float)

    @staticmethod
    def _wide(X: Any) -> Any:  # noqa: N803
        import pandas as pd

        return pd.get_dummies(X, dtype=float)


class Scale:
    """Columns to mean zero and deviation one, and back."""

    def __init__(self, values: Array) -> None:
        spread = values.std(0)
        self.loc = torch.from_numpy(values.mean(0))
        self.scale = torch.from_numpy(np.where(spread > 0, spread, 1.0))

    def __call__(self, values: Array | Tensor) -> Tensor:
        """Return standardised values in single precision."""
        return ((torch.as_tensor(values) - self.loc) / self.scale).float()

    def back(self, values: Tensor) -> Tensor:
        """Return values in their own units, in double precision."""
        return values.double() * self.scale + self.loc

    @property
    def log_volume(self) -> Tensor:
        """Log of the product of the scales."""
        return self.scale.log().sum()


# condens.


def fit_condens(rows: Rows, task: Task, seed: int, **options: Any) -> Predict:
    """Fit condens with defaults, but for the options given."""
    told = {} if task.target_transform is None else {"target_transform": task.target_transform}
    if task.kind == "table":
        model = MDNRegressor(random_state=seed, **told, **options).fit(rows.X, rows.y)
        return lambda X: model.predict_dist(X)  # noqa: N803
    known = inspect.signature(inference.posterior).parameters
    if "n_members" not in known and options.get("n_members") == 1:
        options = {name: value for name, value in options.items() if name != "n_members"}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UnsuitedError(f"condens.inference.posterior has no {', '.join(unknown)}")
    learned = inference.posterior(rows.y, rows.X, random_state=seed, **told, **options)
    return lambda X: learned.given(X)  # noqa: N803


def fit_diagonal(rows: Rows, task: Task, seed: int) -> Predict:
    """Fit the textbook's mixture density network: diagonal covariances, one network."""
    model = MDNRegressor(
        covariance="diagonal",
        n_members=1,
        random_state=seed,
        target_transform=task.target_transform,
    ).fit(rows.X, rows.y)
    return lambda X: model.predict_dist(X)  # noqa: N803


def fit_baseline(rows: Rows, task: Task, _: int, *, which: str) -> Predict:
    """Fit the unconditional Gaussian or the linear model."""
    numbers = Numbers(rows.X)
    fitted = Baselines.fit(torch.from_numpy(numbers(rows.X)), torch.from_numpy(rows.y))

    def predict(X: Any) -> Distribution:  # noqa: N803
        condition = torch.from_numpy(numbers(X))
        linear = which == "linear"
        found = fitted.linear(condition) if linear else fitted.marginal(len(condition))
        return of_distribution(found, task.bounds)

    return predict


# Peers.


class _Silent:
    """A tracker for sbi that leaves no files behind."""

    log_dir = None

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_args, **_options: None


def fit_sbi(rows: Rows, task: Task, seed: int, *, model: str) -> Predict:
    """Fit sbi's NPE with its defaults."""
    from sbi.inference import NPE

    numbers = Numbers(rows.X)
    # Standardised first, too: sbi does it in single precision, which large numbers exceed.
    read, scale = Scale(numbers(rows.X)), Scale(rows.y)
    torch.manual_seed(seed)
    trainer = NPE(density_estimator=model, show_progress_bars=False, tracker=_Silent())
    trainer.append_simulations(scale(rows.y), read(numbers(rows.X)))
    # A batch needs two rows at least.
    batch = min(200, max(2, len(rows.y) // 4))
    estimator = trainer.train(training_batch_size=batch).eval()

    def log_density(value: Tensor, context: Tensor) -> Tensor:
        return estimator.log_prob(scale(value), context).double() - scale.log_volume

    def draw(size: int, context: Tensor) -> Tensor:
        return scale.back(estimator.sample(torch.Size((size,)), context))

    return lambda X: Density(  # noqa: N803
        read(numbers(X)), rows.y.shape[1], log_density, draw, task.bounds
    )


def fit_zuko(rows: Rows, task: Task, seed: int) -> Predict:
    """Fit zuko's neural spline flow: AdamW, stopped early on a tenth of the rows."""
    import zuko

    numbers = Numbers(rows.X)
    read, scale = Scale(numbers(rows.X)), Scale(rows.y)
    X, y = read(numbers(rows.X)), scale(rows.y)  # noqa: N806
    torch.manual_seed(seed)
    flow = zuko.flows.NSF(y.shape[1], X.shape[1], transforms=3, hidden_features=(128, 128))
    order = torch.randperm(len(y))
    held, kept = order[: max(1, len(y) // 10)], order[max(1, len(y) // 10) :]
    optimiser = torch.optim.AdamW(flow.parameters(), lr=1e-3)
    best, state, waited = math.inf, deepcopy(flow.state_dict()), 0
    for _ in range(1000):
        for some in kept[torch.randperm(len(kept))].split(256):
            optimiser.zero_grad()
            (-flow(X[some]).log_prob(y[some]).mean()).backward()
            torch.nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
            optimiser.step()
        with torch.no_grad():
            loss = -float(flow(X[held]).log_prob(y[held]).mean())
        waited += 1
        if loss < best:
            best, state, waited = loss, deepcopy(flow.state_dict()), 0
        if waited == 20:
            break
    flow.load_state_dict(state)

    def log_density(value: Tensor, context: Tensor) -> Tensor:
        return flow(context).log_prob(scale(value)).double() - scale.log_volume

    def draw(size: int, context: Tensor) -> Tensor:
        return scale.back(flow(context).sample((size,)))

    return lambda X: Density(  # noqa: N803
        read(numbers(X)), y.shape[1], log_density, draw, task.bounds
    )


def fit_ngboost(rows: Rows, task: Task, seed: int) -> Predict:
    """Fit NGBoost's Gaussian, stopped early on a tenth of the rows, at most 2000 rounds."""
    from ngboost import NGBRegressor
    from ngboost.distns import MultivariateNormal as Joint
    from ngboost.distns import Normal
    from sklearn.model_selection import train_test_split

    n, dimensions = rows.y.shape
    parameters = dimensions * (dimensions + 3) // 2
    if n * parameters > 300_000:
        raise UnsuitedError(f"{parameters} trees a round on {n} rows take hours")
    numbers = Numbers(rows.X)
    one = dimensions == 1
    scale = Scale(rows.y)
    X, y = numbers(rows.X), scale(rows.y).double().numpy()  # noqa: N806
    fit, held = train_test_split(np.arange(n), test_size=max(1, n // 10), random_state=seed)
    model = NGBRegressor(
        Dist=Normal if one else Joint(dimensions),
        n_estimators=2000,
        verbose=False,
        random_state=seed,
    )
    target = y[:, 0] if one else y
    model.fit(X[fit], target[fit], X[held], target[held], early_stopping_rounds=50)

    def predict(X: Any) -> Distribution:  # noqa: N803
        found = model.pred_dist(numbers(X), max_iter=model.best_val_loss_itr)
        if one:
            loc, spread = found.params["loc"], found.params["scale"]
            root = torch.from_numpy(spread)[:, None, None]
            loc = torch.from_numpy(loc)[:, None]
        else:
            precision = torch.from_numpy(found.cov_inv)
            root = MultivariateNormal(
                torch.zeros(precision.shape[:-1]), precision_matrix=precision
            ).scale_tril
            loc = torch.from_numpy(found.loc)
        joint = MultivariateNormal(scale.back(loc), scale_tril=scale.scale[:, None] * root)
        return of_distribution(joint, task.bounds)

    return predict


def fit_lightgbm(rows: Rows, task: Task, seed: int) -> Predict:
    """Fit a Gaussian by LightGBM: means, then scales of residuals of rows left out.

    Five folds: each stops early on its own rows left out, and their models are averaged. The
    scales are exp(½ E log r²) of those residuals r, by a second set of models, times the constant
    that makes r/s have unit variance; between targets there is the correlation of r/s.
    """
    from lightgbm import LGBMRegressor, early_stopping
    from sklearn.model_selection import KFold

    numbers = Numbers(rows.X)
    X = numbers(rows.X)  # noqa: N806
    n, dimensions = rows.y.shape

    def fit(target: Array) -> tuple[Callable[[Array], Array], Array]:
        left_out, models = np.empty(n), []
        for kept, held in KFold(5, shuffle=True, random_state=seed).split(X):
            model = LGBMRegressor(
                n_estimators=2000, learning_rate=0.05, random_state=seed, n_jobs=1, verbose=-1
            )
            model.fit(
                X[kept],
                target[kept],
                eval_X=X[held],
                eval_y=target[held],
                callbacks=[early_stopping(50, verbose=False)],
            )
            left_out[held] = model.predict(X[held])
            models.append(model)
        return lambda X: np.mean([m.predict(X) for m in models], 0), left_out  # noqa: N803

    means, scales, ratios = [], [], np.empty((n, dimensions))
    for place in range(dimensions):
        mean, guess = fit(rows.y[:, place])
        residual = rows.y[:, place] - guess
        # A residual of zero has no logarithm.
        floor = 1e-6 * residual.var() + np.finfo(float).tiny
        spread, log_square = fit(np.log(residual**2 + floor))
        ratio = residual / np.exp(0.5 * log_square)
        constant = np.sqrt(np.mean(ratio**2))
        ratios[:, place] = ratio / constant
        means.append(mean)
        scales.append(lambda X, f=spread, c=constant: c * np.exp(0.5 * f(X)))  # noqa: N803
    correlation = np.atleast_2d(ratios.T @ ratios / n)
    root = torch.from_numpy(np.linalg.cholesky(correlation + 1e-9 * np.eye(dimensions)))

    def predict(X: Any) -> Distribution:  # noqa: N803
        given = numbers(X)
        loc, spread = (
            torch.from_numpy(np.column_stack([f(given) for f in parts]))
            for parts in (means, scales)
        )
        return of_distribution(
            MultivariateNormal(loc, scale_tril=spread[..., None] * root), task.bounds
        )

    return predict


# The registry.


# The code of condens that decides the outcome of a fit, and of a baseline's.
FIT_FILES = tuple(
    f"{folder}/**/*"
    for folder in (
        "data",
        "estimator",
        "functional",
        "inference",
        "kernels",
        "nn",
        "training",
        "transforms",
    )
)
BASELINE_FILES = ("evaluation/baselines.py", "evaluation/linear.py", "nn/scaling.py")


@cache
def _digest(patterns: tuple[str, ...]) -> str:
    """Return a digest of files of condens, their comments left out."""
    root, digest = Path(condens.__file__).parent, hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        if path.suffix == ".py":
            digest.update(ast.dump(ast.parse(path.read_text())).encode())
        elif path.suffix in (".c", ".h"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


@dataclass(frozen=True)
class Method:
    """A method: how it is fitted, and the package whose version its results belong to."""

    name: str
    fit: Callable[[Rows, Task, int], Predict]
    package: str = "condens"
    reads_gaps: bool = False
    files: tuple[str, ...] = FIT_FILES
    revision: int = 1

    @property
    def ours(self) -> bool:
        """Whether it is condens itself, not a peer."""
        return self.name.partition(":")[0] in ("condens", "condens-1", "condens-auto")

    @property
    def version(self) -> str:
        """What results are cached by; raise `UnsuitedError` if the package is missing."""
        if self.package == "condens":
            return f"condens {condens.__version__}+{_digest(self.files)} r{self.revision}"
        try:
            return f"{self.package} {version(self.package)} r{self.revision}"
        except PackageNotFoundError:
            raise UnsuitedError(f"{self.package} is not installed") from None


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("condens", fit_condens, reads_gaps=True),
        Method("condens-1", partial(fit_condens, n_members=1), reads_gaps=True),
        Method("condens-auto", partial(fit_condens, n_components="auto"), reads_gaps=True),
        Method("diagonal", fit_diagonal, reads_gaps=True),
        *(
            Method(which, partial(fit_baseline, which=which), reads_gaps=True, files=BASELINE_FILES)
            for which in ("linear", "marginal")
        ),
        Method("sbi-mdn", partial(fit_sbi, model="mdn"), "sbi"),
        Method("sbi-nsf", partial(fit_sbi, model="nsf"), "sbi"),
        Method("zuko-nsf", fit_zuko, "zuko"),
        Method("ngboost", fit_ngboost, "ngboost"),
        Method("lightgbm", fit_lightgbm, "lightgbm"),
    )
}
DEFAULT_METHODS = tuple(name for name in METHODS if name != "condens-auto")
QUICK_METHODS = ("condens", "linear", "sbi-mdn", "lightgbm")


def find_method(name: str) -> Method:
    """Return a method by its name; `condens:depth=3,dropout=0.1` has settings of its own."""
    base, _, settings = name.partition(":")
    method = METHODS[base]
    if not settings:
        return method
    options = {}
    for each in settings.split(","):
        key, _, text = each.partition("=")
        try:
            options[key] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            options[key] = text
    return Method(name, partial(method.fit, **options), method.package, method.reads_gaps)


def fit(method: Method, rows: Rows, task: Task, seed: int) -> Predict:
    """Fit a method, or raise `UnsuitedError`."""
    if task.gaps and not method.reads_gaps:
        raise UnsuitedError("it cannot read targets with gaps")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method.fit(rows, task, seed)
