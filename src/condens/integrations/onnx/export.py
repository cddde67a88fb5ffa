"""Export to ONNX, for runtimes without Python or torch."""

import copy
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from condens.data.encoder import Numbers, TableEncoder
from condens.errors import ArgumentError
from condens.files import cannot_hold
from condens.integrations.onnx.check import (
    RANDOM,
    check_agreement,
    far_condition,
    first_row,
    trial_inputs,
)
from condens.integrations.onnx.graph import GRAPHS, Graph
from condens.nn import DensityNetwork
from condens.persistence.container import store

# Largest rounding error of an input, in deviations of its column.
MAX_ROUNDING = 1e-3


class Fitted(Protocol):
    """A fitted regressor, such as `MDNRegressor`."""

    network_: DensityNetwork
    encoder_: TableEncoder


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
            [S, b, D].
        dtype: of inputs, outputs and weights, float32 or float64; the network's by default.
            Standardising and densities are in double precision in both.
        condition: some rows to try the file on; needed where the network has no
            `condition_columns`.
        opset: of ONNX.

    b and S may vary. Before the file is written, ONNX checks it, onnxruntime runs it and its
    answers are compared with the network's: they agree to 1e-5 of a column's largest number in
    float32, beyond the rounding of the network itself, and to 1e-10 in float64.

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2)
    >>> export(network, "density.onnx")  # doctest: +SKIP
    >>> import onnxruntime  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession("density.onnx")  # doctest: +SKIP
    >>> session.run(None, {"condition": condition, "target": target})  # doctest: +SKIP
    """
    _check_path(path)
    if what not in GRAPHS:
        raise ArgumentError(
            "what",
            got=f"is {what!r}",
            expected=f"one of {', '.join(GRAPHS)} was expected",
            fix="Pass one of these words.",
        )
    graph = GRAPHS[what](_network(model, dtype)).eval()
    inputs = trial_inputs(graph, condition)
    data = to_bytes(graph, inputs, opset)
    check_agreement(data, graph, inputs)
    check_agreement(data, graph, first_row(graph, inputs))
    far = far_condition(graph.network)
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
    try:
        with warnings.catch_warnings():
            # About torch's internals, and that one name stands for several equal axes.
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            data = _translate(graph, inputs, opset)
    except Exception as error:
        raise ArgumentError(
            "model",
            got=f"cannot be written as ONNX ({str(error).strip().partition(chr(10))[0]})",
            expected="a backbone of operations that ONNX has was expected",
            fix="Write it without branches that depend on values, or export the rest alone.",
        ) from error
    onnx.checker.check_model(data, full_check=True)
    return data


def _translate(graph: Graph, inputs: tuple[Tensor, ...], opset: int) -> bytes:
    batch, draws = torch.export.Dim("batch"), torch.export.Dim("draws")
    shapes = tuple({0: draws, 1: batch} if name in RANDOM else {0: batch} for name in graph.inputs)
    program = torch.export.export(graph, inputs, dynamic_shapes=shapes)
    made: Any = torch.onnx.export(
        program,
        dynamo=True,
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        dynamic_shapes=shapes,
        opset_version=opset,
        custom_translation_table=_translations(),
        verbose=False,
    )
    data: bytes = made.model_proto.SerializeToString()
    return data


def _translations() -> dict[Any, Callable[..., Any]]:
    """Return three operations in terms of ONNX's: torch's versions lose digits, or overflow."""
    from onnx.helper import make_tensor
    from onnxscript import opset18 as op

    def constant(s: float, dtype: int = 1) -> Any:
        # With all its digits, where torch's goes through float32.
        return op.Constant(value=make_tensor("", dtype, [], [s]))

    def full_like(self: Any, fill_value: float, **_: Any) -> Any:
        return op.Expand(constant(fill_value, int(self.dtype)), op.Shape(self))

    def logaddexp(self: Any, other: Any) -> Any:
        # log(eᵃ + eᵇ) = max + log(1 + e^−|a − b|), where torch's overflows.
        gap = op.Exp(op.Neg(op.Abs(op.Sub(self, other))))
        return op.Add(op.Max(self, other), op.Log(op.Add(gap, constant(1.0, int(self.dtype)))))

    return {
        torch.ops.aten.logaddexp.default: logaddexp,
        torch.ops.aten.full_like.default: full_like,
        torch.ops.aten.scalar_tensor.default: constant,
    }


def _check_path(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work, a path that can hold no file."""
    # What only the system can tell, such as who may write there, `store` tells in the end.
    fault = None
    with suppress(OSError, ValueError, RuntimeError):
        fault = cannot_hold(Path(path))
    if fault is not None:
        raise ArgumentError("path", **fault)


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
    if encoder is not None and encoder.categories:
        raise ArgumentError(
            "model",
            got="was fitted on a table with categories",
            expected="only numbers are exported",
            fix="Fit on numbers, such as one column of 0 and 1 for each category.",
        )
    columns = () if encoder is None else encoder.features
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
    target, condition = network.target_scaling, network.condition_scaling
    ends = [target.location - target.scale, target.location + target.scale]
    if network.transforms is not None:
        ends = [
            torch.stack([t.from_real(x) for t, x in zip(network.transforms, end, strict=True)])
            for end in ends
        ]
    checked = {"target": ends}
    if condition is not None:
        scale = condition.scale
        checked["condition"] = [condition.location - scale, condition.location + scale]
    for name, (low, high) in checked.items():
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
