"""Export to ONNX, for runtimes without Python or torch.

Graphs compute the log density, the mixture and draws of a network by ONNX's operations alone:
tensors in, tensors out, in original units, without a distribution object or a kernel. Weights keep
their dtype; standardising and densities are in double precision, as in the network itself. A file
is compared with its network before it is written.
"""

import copy
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor, nn

from condens.data.encoder import Numbers, TableEncoder
from condens.errors import ArgumentError, ShapeError
from condens.files import as_path, cannot_hold
from condens.functional.mixture import log_prob
from condens.functional.precision import widen
from condens.functional.sampling import from_latent, pick
from condens.functional.triangular import unwhiten
from condens.nn import DensityNetwork
from condens.nn.heads.base import Parameters
from condens.persistence.container import store
from condens.scalars import as_choice
from condens.transforms import Real, Transform

# Largest rounding error of an input, in deviations of its column.
MAX_ROUNDING = 1e-3
# Largest difference of file and network, relative to the largest number of a column.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
TRIAL_ROWS, DRAWS_PER_ROW = 17, 3
# Distances from the training range, in widths of it, at which a file is tried too: where conditions
# are unchanged, where they are pulled in, and where they no longer grow.
TRIAL_DISTANCES = (0.4, 0.55, 0.7, 2.0, 1e6)
# Terms of smooth functions, enough for all digits.
CHEBYSHEV_TERMS = 36
# u₀ and M of `_ndtri_part`: u = 37.2 belongs to 3·10⁻³⁰¹.
NDTRI_START = math.sqrt(2 * math.log(2))
NDTRI_SPAN = (37.2 - NDTRI_START) / (42.2 - NDTRI_START)
# ONNX's number of double precision.
DOUBLE = 11
# Inputs whose first axis is that of the draws.
RANDOM = ("noise", "uniform")


class Fitted(Protocol):
    """A fitted regressor, such as `MDNRegressor`."""

    network_: DensityNetwork
    encoder_: TableEncoder


class Graph(nn.Module, ABC):
    """Base class: a network's answer to one question.

    Args:
        network: with triangular heads, on numbers.
    """

    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]]

    def __init__(self, network: DensityNetwork) -> None:
        super().__init__()
        for refused, got, expected, fix in (
            (
                not network.form.triangular,
                f"has a head with covariance {network.form.covariance!r}",
                "only triangular factors are exported",
                "Train with covariance 'full', 'diagonal', 'isotropic' or 'tied'.",
            ),
            (
                network.condition_codes > 0,
                "reads codes of categories",
                "only numbers are exported",
                "Train on numbers, such as one column of 0 and 1 for each category.",
            ),
            (
                network.discrete and "target" in self.inputs,
                "has targets that are whole numbers",
                "their log density is not exported",
                "Export what='mixture' or what='sample'.",
            ),
        ):
            if refused:
                raise ArgumentError("network", got=got, expected=expected, fix=fix)
        self.network = network
        self.transforms: tuple[Transform, ...] = (
            network.transforms or (Real(),) * network.dimensions
        )

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the answer."""

    def _standard(self, condition: Tensor, *, tail: bool = True) -> Parameters:
        """Return the mixtures of standardised targets, in double precision."""
        read = self.network.standardise_condition(condition)
        return self.network.parameters_of(read, tail=tail).to(torch.float64)


class LogDensity(Graph):
    """log p(target | condition); −inf outside the support, NaN where an entry is NaN.

    Shapes: condition [b, C], target [b, D] → [b].

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> LogDensity(network)(torch.zeros(5, 3), torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    inputs = ("condition", "target")
    outputs = ("log_density",)

    def forward(self, condition: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """Return the log density of each row."""
        scaling, columns = self.network.target_scaling, []
        correction = torch.zeros_like(target[:, 0], dtype=torch.float64) - scaling.scale.log().sum()
        for transform, column in zip(self.transforms, widen(target).unbind(1), strict=True):
            inside = transform.contains(column) | column.isnan()
            column = torch.where(inside, column, transform.from_real(torch.zeros_like(column)))
            columns.append(transform.to_real(column))
            correction = correction + torch.where(inside, transform.log_slope(column), -torch.inf)
        real = (torch.stack(columns, 1) - scaling.location) / scaling.scale
        return (log_prob(real, *self._standard(condition)) + correction).to(self.network.dtype)


class MixtureParameters(Graph):
    """The mixture: what `GaussianMixture` is made of.

    Where the network has transforms, it is the mixture of the real coordinates.

    Shapes: condition [b, C] → log weights [b, K], means [b, K, D], factors [b, K, T].

    >>> from condens import GaussianMixture
    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> GaussianMixture(*MixtureParameters(network)(torch.zeros(5, 3)))
    GaussianMixture(batch_shape=[5], n_components=4, dimensions=2, covariance='full')
    """

    inputs = ("condition",)
    outputs = ("logits", "means", "factors")

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return the parameters."""
        scaling = self.network.target_scaling
        logits, *rest = self._standard(condition).affine(scaling.scale, scaling.location)
        return tuple(t.to(self.network.dtype) for t in (torch.log_softmax(logits, -1), *rest))


class Sampler(Graph):
    """Draws x = μₖ + Ūₖ⁻¹η without the tail, with the random numbers as inputs.

    The component k is the first whose cumulative weight exceeds the uniform number.

    Shapes: condition [b, C], standard normal noise η [S, b, D], uniform [S, b] → [S, b, D].

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> Sampler(network)(torch.zeros(5, 3), torch.randn(10, 5, 2), torch.rand(10, 5)).shape
    torch.Size([10, 5, 2])
    """

    inputs = ("condition", "noise", "uniform")
    outputs = ("draws",)

    def __init__(self, network: DensityNetwork) -> None:
        super().__init__(network)
        infinite = network.target_scaling.scale.new_tensor(
            [-torch.inf, torch.inf], dtype=network.dtype
        )
        self.ends = nn.Buffer(torch.stack([t.nearest(infinite) for t in self.transforms], -1))

    def forward(  # type: ignore[override]
        self, condition: Tensor, noise: Tensor, uniform: Tensor
    ) -> Tensor:
        """Return the draws."""
        logits, means, factors = self._standard(condition, tail=False)
        cumulative = torch.softmax(logits, -1).cumsum(-1)
        total = cumulative[..., -1:]
        component = (widen(uniform).unsqueeze(-1) * total >= cumulative).sum(-1)
        # Rounding may reach the total itself; a component without weight is never drawn.
        component = torch.minimum(component, (cumulative < total).sum(-1))
        mean, factor = _chosen(means, component), _chosen(factors, component)
        scaling = self.network.target_scaling
        real = (mean + unwhiten(widen(noise), factor)) * scaling.scale + scaling.location
        draws = from_real(self.transforms, real).to(self.network.dtype)
        # Not a clamp, which in some runtimes makes a bound of NaN.
        low, high = self.ends.unbind(0)
        return torch.where(draws < low, low, torch.where(draws > high, high, draws))


def from_real(transforms: Sequence[Transform], real: Tensor) -> Tensor:
    """Return targets from their real coordinates. Shapes: [..., D] → [..., D]."""
    return torch.stack(
        [one.from_real(x) for one, x in zip(transforms, real.unbind(-1), strict=True)], -1
    )


GRAPHS: dict[str, type[Graph]] = {
    "log_density": LogDensity,
    "mixture": MixtureParameters,
    "sample": Sampler,
}


def _chosen(tensor: Tensor, component: Tensor) -> Tensor:
    """Return the parameters of each draw's component. Shapes: [b, K, N], [S, b] → [S, b, N]."""
    # Not by take_along_dim, which would fix the numbers of draws and rows.
    place = component[..., None, None].expand(*component.shape, 1, tensor.shape[-1])
    return tensor.expand(component.shape[0], *tensor.shape).gather(2, place).squeeze(2)


def export(
    model: DensityNetwork | Fitted,
    path: str | os.PathLike[str],
    what: str = "log_density",
    *,
    dtype: torch.dtype | None = None,
    condition: ArrayLike | None = None,
    opset: int = 18,
) -> None:
    """Write a network's log density, mixture or draws as an ONNX file, in original units.

    Args:
        model: a `MixtureNetwork` or `Ensemble` with full, diagonal, isotropic or tied
            covariances, or an `MDNRegressor` fitted on numbers without gaps.
        path: of the file, which is written whole or not at all.
        what: `log_density`: condition [b, C], target [b, D] → log_density [b];
            `mixture`: condition → logits [b, K], means [b, K, D] and factors [b, K, T], as
            `GaussianMixture` takes them, of the real coordinates where there are transforms;
            `sample`: condition, standard normal noise [S, b, D], uniform [S, b] → draws
            [S, b, D]. All have the network's `trim`, `limit` and `spread`, draws no `tail`.
        dtype: of inputs, outputs and weights, float32 or float64; the network's by default.
            Standardising and densities are in double precision in both.
        condition: some rows to try the file on; needed where the network has no
            `condition_columns`.
        opset: of ONNX.

    b and S may vary, from 1. Before the file is written, ONNX checks it, onnxruntime runs it and
    its answers are compared with the network's: they agree to 1e-5 of a column's largest number in
    float32, beyond the rounding of the network itself, and to 1e-10 in float64.

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2)
    >>> export(network, "density.onnx")  # doctest: +SKIP
    >>> import onnxruntime  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession("density.onnx")  # doctest: +SKIP
    >>> session.run(None, {"condition": condition, "target": target})  # doctest: +SKIP
    """
    # A path that can hold no file is refused before any work. What only the system can tell, such
    # as who may write there, `store` tells in the end.
    place, fault = as_path("path", path), None
    with suppress(OSError, ValueError, RuntimeError):
        fault = cannot_hold(place)
    if fault is not None:
        raise ArgumentError("path", **fault)
    what = as_choice("what", what, tuple(GRAPHS), fix="Pass one of these words.")
    graph = GRAPHS[what](_network(model, dtype)).eval()
    inputs = trial_inputs(graph, condition)
    data = to_bytes(graph, inputs, opset)
    check_agreement(data, graph, inputs)
    row = tuple(
        given[:, :1] if name in RANDOM else given[:1]
        for name, given in zip(graph.inputs, inputs, strict=True)
    )
    check_agreement(data, graph, row)
    far = _far_condition(graph.network)
    if far is not None:
        check_agreement(data, graph, trial_inputs(graph, far))
    store(path, data)


def to_bytes(graph: Graph, inputs: tuple[Tensor, ...], opset: int = 18) -> bytes:
    """Return the ONNX file of a graph; `inputs` are an example of two rows or more."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            "Export needs onnx, onnxscript and onnxruntime. Install: pip install 'condens[onnx]'"
        ) from error
    batch, draws = torch.export.Dim("batch"), torch.export.Dim("draws")
    shapes = tuple({0: draws, 1: batch} if name in RANDOM else {0: batch} for name in graph.inputs)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # About torch's internals, and that one name stands for several equal axes.
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            made: Any = torch.onnx.export(
                torch.export.export(graph, inputs, dynamic_shapes=shapes),
                dynamo=True,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_shapes=shapes,
                opset_version=opset,
                custom_translation_table=_translations(),
                verbose=False,
            )
            data: bytes = made.model_proto.SerializeToString()
    except Exception as error:
        raise ArgumentError(
            "model",
            got=f"cannot be written as ONNX ({str(error).strip().partition(chr(10))[0]})",
            expected="a backbone of operations that ONNX has was expected",
            fix="Write it without branches that depend on values, or export the rest alone.",
        ) from error
    onnx.checker.check_model(data, full_check=True)
    return data


def _chebyshev(function: Callable[[Tensor], Tensor]) -> list[float]:
    """Return the coefficients of a smooth function on [−1, 1], to all digits."""
    order = torch.arange(CHEBYSHEV_TERMS, dtype=torch.float64)
    angles = (order + 0.5) * (math.pi / CHEBYSHEV_TERMS)
    values = function(angles.cos())
    sums = (order.unsqueeze(-1) * angles).cos() @ values * (2 / CHEBYSHEV_TERMS)
    return [0.5 * float(sums[0]), *sums[1:].tolist()]


def _erfc_part(s: Tensor) -> Tensor:
    """Return log(erfcx(z)/t), smooth in s = 2t − 1, for t = 2/(2 + z) and z ≥ 0."""
    t = 0.5 * (s + 1)
    return (torch.special.erfcx(2 / t - 2) / t).log()


def _ndtri_part(s: Tensor) -> Tensor:
    """Return u + z where Φ(z) = exp(−u²/2) ≤ ½, smooth in s = 2m/M − 1, m = v/(v + 5), v = u − u₀.

    u₀ = √(2 log 2) belongs to Φ(z) = ½.
    """
    m = 0.5 * NDTRI_SPAN * (s + 1)
    u = NDTRI_START + 5 * m / (1 - m)
    return u + torch.special.ndtri((-0.5 * u.square()).exp())


def _translations() -> dict[Any, Callable[..., Any]]:
    """Return five operations in terms of ONNX's: torch's versions lose digits, or are not there."""
    from onnx.helper import make_tensor
    from onnxscript import opset18 as op

    def constant(s: float, dtype: int = 1) -> Any:
        # With all its digits, where torch's goes through float32.
        return op.Constant(value=make_tensor("", dtype, [], [s]))

    def polynomial(s: Any, function: Callable[[Tensor], Tensor]) -> Any:
        # Clenshaw's recurrence, scaled: ONNX's optimiser takes what is below 1e-8 for 0.
        unit, twice = 2.0**60, op.Mul(constant(2.0, DOUBLE), s)
        *rest, last = (constant(unit * c, DOUBLE) for c in _chebyshev(function))
        now, before = last, constant(0.0, DOUBLE)
        for c in reversed(rest):
            now, before = op.Sub(op.Add(op.Mul(twice, now), c), before), now
        return op.Div(op.Sub(now, op.Mul(s, before)), constant(unit, DOUBLE))

    def erfc(self: Any) -> Any:
        z, one, two = op.Abs(self), constant(1.0, DOUBLE), constant(2.0, DOUBLE)
        t = op.Div(two, op.Add(two, z))
        part = polynomial(op.Sub(op.Mul(two, t), one), _erfc_part)
        above = op.Mul(t, op.Exp(op.Sub(part, op.Mul(z, z))))
        return op.Where(op.Less(self, constant(0.0, DOUBLE)), op.Sub(two, above), above)

    def ndtri(self: Any) -> Any:
        one = constant(1.0, DOUBLE)
        low = op.Less(self, constant(0.5, DOUBLE))
        nearer = op.Where(low, self, op.Sub(one, self))
        u = op.Sqrt(op.Mul(constant(-2.0, DOUBLE), op.Log(nearer)))
        v = op.Sub(u, constant(NDTRI_START, DOUBLE))
        m = op.Div(v, op.Add(v, constant(5.0, DOUBLE)))
        s = op.Sub(op.Mul(constant(2 / NDTRI_SPAN, DOUBLE), m), one)
        z = op.Sub(polynomial(s, _ndtri_part), u)
        return op.Where(low, z, op.Neg(z))

    def full_like(self: Any, fill_value: float, **_: Any) -> Any:
        return op.Expand(constant(fill_value, int(self.dtype)), op.Shape(self))

    def logaddexp(self: Any, other: Any) -> Any:
        # log(eᵃ + eᵇ) = max + log(1 + e^−|a − b|), where torch's overflows.
        gap = op.Exp(op.Neg(op.Abs(op.Sub(self, other))))
        return op.Add(op.Max(self, other), op.Log(op.Add(gap, constant(1.0, int(self.dtype)))))

    return {
        torch.ops.aten.logaddexp.default: logaddexp,
        torch.ops.aten.erfc.default: erfc,
        torch.ops.aten.special_ndtri.default: ndtri,
        torch.ops.aten.full_like.default: full_like,
        torch.ops.aten.scalar_tensor.default: constant,
    }


def _network(model: DensityNetwork | Fitted, dtype: torch.dtype | None) -> DensityNetwork:
    """Return a copy of a model's network to export, in a dtype that keeps the columns' digits."""
    found = getattr(model, "network_", model)
    if not isinstance(found, DensityNetwork):
        raise ArgumentError(
            "model",
            got=f"is {type(model).__name__}",
            expected="a MixtureNetwork, an Ensemble or a fitted MDNRegressor was expected",
            fix="Pass one of these.",
        )
    encoder: TableEncoder | None = getattr(model, "encoder_", None)
    # Categories, with or without gaps, are refused by the graph.
    columns = () if encoder is None or encoder.categories else encoder.features
    if any(isinstance(column, Numbers) and column.fill is not None for column in columns):
        raise ArgumentError(
            "model",
            got="was fitted on a table with gaps",
            expected="they are filled before the network",
            fix="Export model.network_, and give it what model.encoder_.encode(X) returns.",
        )
    dtype = found.dtype if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(
            "dtype",
            got=f"is {dtype}",
            expected="float32 or float64 was expected",
            fix="Choose one of these.",
        )
    network = copy.deepcopy(found).cpu().to(dtype)
    if dtype == torch.float32:
        _check_digits(network)
    return network


def _check_digits(network: DensityNetwork) -> None:
    """Refuse float32 where it rounds a column by more than its deviation allows."""
    for name, scaling in (
        ("target", network.target_scaling),
        ("condition", network.condition_scaling),
    ):
        if scaling is None:
            continue
        low, high = scaling.location - scaling.scale, scaling.location + scaling.scale
        if name == "target" and network.transforms is not None:
            low, high = (from_real(network.transforms, end) for end in (low, high))
        step = torch.finfo(torch.float32).eps * torch.maximum(low.abs(), high.abs())
        coarse = (step > MAX_ROUNDING * (high - low)).nonzero().flatten().tolist()
        if coarse:
            raise ArgumentError(
                "dtype",
                got=f"is torch.float32, in which column(s) {coarse} of the {name} would lose their "
                "digits",
                expected=f"they lie about {float(low[coarse[0]]):.6g} to "
                f"{float(high[coarse[0]]):.6g}",
                fix="Pass dtype=torch.float64, or subtract an offset from the column.",
            )


@torch.no_grad()
def trial_inputs(graph: Graph, condition: ArrayLike | None) -> tuple[Tensor, ...]:
    """Return inputs to try a graph on: conditions, targets drawn for them, random numbers."""
    network, generator = graph.network, Generator().manual_seed(0)
    scaling = network.condition_scaling
    if condition is not None:
        condition = torch.as_tensor(condition)
    elif scaling is not None:
        noise = torch.randn(
            TRIAL_ROWS, len(scaling.location), generator=generator, dtype=torch.float64
        )
        condition = scaling.location + scaling.scale * noise
    if condition is None or len(condition) < 2:
        raise ShapeError(
            "condition",
            got="is missing or a single row",
            expected="the file is tried on at least two",
            fix="Pass some rows as condition=.",
        )
    if condition.is_floating_point():
        condition = condition.to(network.dtype)
    mixture = network(condition, tail=False)
    target = mixture.sample(generator=generator)
    noise = torch.randn(DRAWS_PER_ROW, *target.shape, generator=generator, dtype=network.dtype)
    # In the middle of a component's interval, where rounding cannot choose another.
    chosen = torch.multinomial(mixture.weights, DRAWS_PER_ROW, True, generator=generator)
    middles = mixture.weights.cumsum(-1) - 0.5 * mixture.weights
    uniform = middles.gather(-1, chosen).mT.contiguous()
    known = {"condition": condition, "target": target, "noise": noise, "uniform": uniform}
    return tuple(known[name] for name in graph.inputs)


def _far_condition(network: DensityNetwork) -> Tensor | None:
    """Return conditions outside the training range, on both sides of it; None without a range."""
    scaling = network.condition_scaling
    if scaling is None or not bool((scaling.lower <= scaling.upper).all()):
        return None
    steps = torch.tensor(TRIAL_DISTANCES, dtype=torch.float64).unsqueeze(-1)
    width = torch.maximum(scaling.upper - scaling.lower, scaling.scale)
    rows = torch.cat([scaling.lower - steps * width, scaling.upper + steps * width])
    largest = torch.finfo(network.dtype).max
    return rows.clamp(-largest, largest)


@torch.no_grad()
def _answers(network: DensityNetwork, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return what the network itself answers, in the order of a graph's outputs."""
    condition = given["condition"]
    if "target" in given:
        return (-network.nll(condition, given["target"]),)
    read = network.standardise_condition(condition)
    tail = "noise" not in given
    real = network.target_scaling.inverse(network.mixture_of(read, tail=tail))
    logits, means, factors = tuple(real.parameters)
    if tail:
        return torch.log_softmax(logits, -1), means, factors
    component = pick(given["uniform"].double(), torch.softmax(logits, -1).cumsum(-1))
    means, factors = (tensor[range(len(condition)), component] for tensor in (means, factors))
    draws = from_latent(given["noise"].double(), means, factors)
    if network.transforms is not None:
        draws = torch.stack(
            [
                transform.nearest(transform.from_real(x).to(network.dtype))
                for transform, x in zip(network.transforms, draws.unbind(-1), strict=True)
            ],
            -1,
        )
    return (draws,)


def check_agreement(data: bytes, graph: Graph, inputs: tuple[Tensor, ...]) -> None:
    """Raise unless a file's answers in onnxruntime are the network's."""
    import onnxruntime

    given = dict(zip(graph.inputs, inputs, strict=True))
    outputs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(
        None, {name: tensor.numpy() for name, tensor in given.items()}
    )
    network = graph.network
    answers = _answers(network, given), _answers(copy.deepcopy(network).double(), given)
    for name, output, single, double in zip(graph.outputs, outputs, *answers, strict=True):
        ours, theirs = torch.as_tensor(output).double(), single.double()
        # In float32, also the rounding of the weights and of a column with an offset.
        weights = 10 * (theirs - double).nan_to_num(0.0, 0.0, 0.0).abs().amax()
        offset = torch.finfo(network.dtype).eps * theirs.nan_to_num(0, 0, 0).abs()
        allowed = TOLERANCE[network.dtype] * _size(network, name, theirs) + weights + offset
        if not bool(((ours == theirs) | ((ours - theirs).abs() <= allowed)).all()):
            raise ArgumentError(
                "model",
                got=f"is written with {name} off by {float((ours - theirs).abs().max()):.3g}",
                expected="onnxruntime was expected to answer as the network does",
                fix="Write the backbone with operations that ONNX has; please report it if it is.",
            )


def _size(network: DensityNetwork, name: str, values: Tensor) -> Tensor:
    """Return the largest finite number of each column, and at least its unit."""
    scaling = network.target_scaling
    least: Tensor | float = 0.0 if name == "draws" else 1.0
    if name in ("means", "draws") and network.transforms is None:
        values, least = values - scaling.location, scaling.scale
    rows = tuple(range(max(1, values.dim() - 1)))
    largest = values.nan_to_num(0.0, 0.0, 0.0).abs().amax(rows)
    return torch.maximum(largest, torch.as_tensor(least, dtype=largest.dtype))
