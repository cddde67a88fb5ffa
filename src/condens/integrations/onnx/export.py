"""Export to ONNX: a network's answers in one file, for runtimes without Python or torch."""

import copy
import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condens.data.encoder import Numbers
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

# What rounding an input may move it by, in deviations of its column.
ROUNDING = 1e-3


def export(
    model: Any,
    path: str | os.PathLike[str],
    what: str = "log_density",
    *,
    dtype: torch.dtype | None = None,
    condition: Any = None,
    opset: int = 18,
) -> None:
    """Write a network's answer to one question as an ONNX file, in the targets' own units.

    Args:
        model: a `MixtureNetwork` or `Ensemble` with full, diagonal, isotropic or tied
            covariances, or an `MDNRegressor` fitted on numbers without gaps.
        path: of the file, which is written whole or not at all.
        what: `log_density`: condition [b, C], target [b, D] → log_density [b];
            `mixture`: condition → logits [b, K], means [b, K, D] and factors [b, K, T], as
            `GaussianMixture` takes them, of the real coordinates where there are maps;
            `sample`: condition, standard normal noise [S, b, D], uniform [S, b] → draws
            [S, b, D].
        dtype: of inputs, outputs and weights, float32 or float64; the network's by default.
            Standardising and densities are in double precision in either.
        condition: some rows to try the file on; needed where the network has no
            `condition_columns`.
        opset: of ONNX.

    b and S are free. Before it is written the file is checked by ONNX, run in onnxruntime and
    compared with the network: they agree to 1e-5 of a column's largest number in float32,
    beyond what float32 itself makes of the network, and to 1e-10 in float64.

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
            fix="Choose one.",
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
        told = "Export needs onnx, onnxscript and onnxruntime. Install: pip install 'condens[onnx]'"
        raise ImportError(told) from error
    try:
        with warnings.catch_warnings():
            # Torch's own: of its internals, and that one name stands for several equal axes.
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            data = _translate(graph, inputs, opset)
    except Exception as error:
        raise ArgumentError(
            "model",
            got=f"cannot be written as ONNX ({str(error).strip().partition(chr(10))[0]})",
            expected="a backbone of operations that ONNX has was expected",
            fix="Write it without steps that depend on values, or export the rest by itself.",
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
        custom_translation_table={
            torch.ops.aten.logaddexp.default: _logaddexp,
            torch.ops.aten.full_like.default: _full_like,
            torch.ops.aten.scalar_tensor.default: _constant,
        },
        verbose=False,
    )
    data: bytes = made.model_proto.SerializeToString()
    return data


# Three operations in ONNX's own: torch's translations lose digits, or overflow.


def _constant(s: float, dtype: int = 1) -> Any:
    """Return a constant with all its digits, where torch's goes through float32."""
    from onnx.helper import make_tensor
    from onnxscript import opset18 as op

    return op.Constant(value=make_tensor("", dtype, [], [s]))


def _full_like(self: Any, fill_value: float, **_: Any) -> Any:
    """Return a `_constant` everywhere."""
    from onnxscript import opset18 as op

    return op.Expand(_constant(fill_value, int(self.dtype)), op.Shape(self))


def _logaddexp(self: Any, other: Any) -> Any:
    """Return log(eᵃ + eᵇ) = max + log(1 + e^−|a − b|), where torch's overflows."""
    from onnxscript import opset18 as op

    gap = op.Exp(op.Neg(op.Abs(op.Sub(self, other))))
    return op.Add(op.Max(self, other), op.Log(op.Add(gap, _constant(1.0, int(self.dtype)))))


def _check_path(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work, a path that can hold no file."""
    # What only the system can tell, such as who may write there, `store` tells in the end.
    fault = None
    with suppress(OSError, ValueError, RuntimeError):
        fault = cannot_hold(Path(path))
    if fault is not None:
        raise ArgumentError("path", **fault)


def _network(model: Any, dtype: torch.dtype | None) -> DensityNetwork:
    """Return a copy of a model's network to export, in a dtype that keeps the columns' digits."""
    found = getattr(model, "network_", model)
    if not isinstance(found, DensityNetwork):
        raise ArgumentError(
            "model",
            got=f"is {type(model).__name__}",
            expected="a MixtureNetwork, an Ensemble or a fitted MDNRegressor was expected",
            fix="Pass one of these.",
        )
    _check_table(model)
    dtype = found.dtype if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(
            "dtype",
            got=f"is {dtype}",
            expected="float32 or float64 was expected",
            fix="Choose one of these.",
        )
    network = copy.deepcopy(found).cpu().to(dtype)
    _check_digits(network, dtype)
    return network


def _check_table(model: Any) -> None:
    """Refuse a regressor that reads more from its tables than their numbers."""
    encoder = getattr(model, "encoder_", None)
    if encoder is None:
        return
    if any(not isinstance(column, Numbers) for column in encoder.features):
        raise ArgumentError(
            "model",
            got="was fitted on a table with categories",
            expected="only numbers are exported",
            fix="Fit on numbers, such as one column of 0 and 1 for each category.",
        )
    if any(column.fill is not None for column in encoder.features):
        raise ArgumentError(
            "model",
            got="was fitted on a table with gaps",
            expected="they are filled before the network",
            fix="Export model.network_, and give it what model.encoder_.encode(X) returns.",
        )


def _check_digits(network: DensityNetwork, dtype: torch.dtype) -> None:
    """Refuse a dtype that rounds a column by more than its deviation allows."""
    target, scaling = network.target_scaling, network.condition_scaling
    ends = torch.stack([target.location - target.scale, target.location + target.scale])
    if network.transforms is not None:
        own = [one.from_real(x) for one, x in zip(network.transforms, ends.unbind(1), strict=True)]
        ends = torch.stack(own, 1)
    checked = {"target": ends}
    if scaling is not None:
        checked["condition"] = torch.stack(
            [scaling.location - scaling.scale, scaling.location + scaling.scale]
        )
    for name, (low, high) in checked.items():
        step = torch.finfo(dtype).eps * torch.maximum(low.abs(), high.abs())
        coarse = (step > ROUNDING * (high - low)).nonzero().flatten().tolist()
        if coarse and dtype != torch.float64:
            raise ArgumentError(
                "dtype",
                got=f"is {dtype}, in which column(s) {coarse} of the {name} would "
                "lose their digits",
                expected=f"they lie about {float(low[coarse[0]]):.6g} to "
                f"{float(high[coarse[0]]):.6g}",
                fix="Pass dtype=torch.float64, or subtract an offset from the column.",
            )
