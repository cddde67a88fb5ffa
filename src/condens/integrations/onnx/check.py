"""Whether an exported file answers as its network does, found out before it is written."""

import copy
from typing import Any

import torch
from torch import Generator, Tensor

from condens.errors import ArgumentError, ShapeError
from condens.functional.sampling import pick
from condens.functional.triangular import unwhiten
from condens.integrations.onnx.graph import Graph
from condens.nn import DensityNetwork

# What a file and the network may differ by, relative to the largest number of a column.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
# Rows that a file is tried on, and draws for each.
ROWS, DRAWS = 17, 3
# How far outside the training range a file is tried too, in widths of it: where a condition is
# still read as it is, where less and less of it is, and where nothing more is.
BEYOND = (0.4, 0.55, 0.7, 2.0, 1e6)
# Inputs whose first axis is that of the draws.
RANDOM = ("noise", "uniform")


@torch.no_grad()
def trial_inputs(graph: Graph, condition: Any) -> tuple[Tensor, ...]:
    """Return what a graph is tried on: conditions, and targets that the network draws for them."""
    network, generator = graph.network, Generator().manual_seed(0)
    scaling = network.condition_scaling
    if condition is not None:
        condition = torch.as_tensor(condition)
    elif scaling is not None:
        noise = torch.randn(ROWS, len(scaling.location), generator=generator, dtype=torch.float64)
        condition = scaling.location + scaling.scale * noise
    if condition is None or len(condition) < 2:
        raise ShapeError(
            "condition",
            got="is missing or a single row",
            expected="this network tells no number of columns",
            fix="Pass some rows to try it on.",
        )
    if condition.is_floating_point():
        condition = condition.to(network.dtype)
    mixture = network(condition)
    base = mixture if network.transforms is None else mixture.base
    target = mixture.sample(generator=generator)
    shape = (DRAWS, len(condition))
    noise = torch.randn(*shape, network.dimensions, generator=generator, dtype=network.dtype)
    # In the middle of a component's share, where rounding cannot choose another.
    chosen = torch.multinomial(base.weights, DRAWS, True, generator=generator)
    upper, share = (t.gather(-1, chosen) for t in (base.weights.cumsum(-1), base.weights))
    uniform = (upper - 0.5 * share).mT.contiguous()
    known = {"condition": condition, "target": target, "noise": noise, "uniform": uniform}
    return tuple(known[name] for name in graph.inputs)


def far_condition(network: DensityNetwork) -> Tensor | None:
    """Return conditions outside the training range, on both sides of it; None without a range."""
    scaling = network.condition_scaling
    if scaling is None or not bool((scaling.lower <= scaling.upper).all()):
        return None
    steps = torch.tensor(BEYOND, dtype=torch.float64).unsqueeze(-1)
    width = torch.maximum(scaling.upper - scaling.lower, scaling.scale)
    rows = torch.cat([scaling.lower - steps * width, scaling.upper + steps * width])
    largest = torch.finfo(network.dtype).max
    return rows.clamp(-largest, largest)


def first_row(graph: Graph, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the inputs of a batch of one."""
    pairs = zip(graph.inputs, inputs, strict=True)
    return tuple(given[:, :1] if name in RANDOM else given[:1] for name, given in pairs)


@torch.no_grad()
def _answer(network: DensityNetwork, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what the network itself answers, by name, in double precision."""
    condition = given["condition"]
    if "target" in given:
        standard: Any = network.mixture_of(network.standardise_condition(condition))
        real = network.real_target(given["target"])
        density = standard.to(torch.float64).log_prob(network.target_scaling(real))
        units = torch.stack([network.log_scale(row) for row in real.split(1)])
        return {"log_density": density - units.double()}
    mixture = network(condition.double() if condition.is_floating_point() else condition)
    base = (mixture if network.transforms is None else mixture.base).to(torch.float64)
    if "noise" not in given:
        logits = torch.log_softmax(base.logits, -1)
        return {"logits": logits, "means": base.means, "factors": base.factors}
    component = pick(given["uniform"].double(), base.weights.cumsum(-1))
    rows = torch.arange(len(condition))
    factors, means = base.factors[rows, component], base.means[rows, component]
    draws = means + unwhiten(given["noise"].double(), factors)
    if network.transforms is not None:
        columns = zip(network.transforms, draws.unbind(-1), strict=True)
        nearest = [own.nearest(own.from_real(x).to(network.dtype)) for own, x in columns]
        draws = torch.stack(nearest, -1).double()
    return {"draws": draws}


def check_agreement(data: bytes, graph: Graph, inputs: tuple[Tensor, ...]) -> None:
    """Raise where a file's answers in onnxruntime are not the network's."""
    import onnxruntime

    given = dict(zip(graph.inputs, inputs, strict=True))
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    network = graph.network
    expected, exact = _answer(network, given), _answer(copy.deepcopy(network).double(), given)
    for name, output in zip(graph.outputs, outputs, strict=True):
        ours, theirs = torch.as_tensor(output).double(), expected[name]
        allowed = TOLERANCE[network.dtype] * _size(network, name, theirs)
        # What float32 makes of the weights, and of a column with an offset.
        allowed = allowed + 10 * (theirs - exact[name]).nan_to_num(0.0, 0.0, 0.0).abs().amax()
        allowed = allowed + torch.finfo(network.dtype).eps * theirs.nan_to_num(0.0, 0.0, 0.0).abs()
        if not bool(((ours == theirs) | ((ours - theirs).abs() <= allowed)).all()):
            wanted = "onnxruntime was expected to answer as the network does"
            raise ArgumentError(
                "model",
                got=f"is written with {name} off by {float((ours - theirs).abs().max()):.3g}",
                expected=wanted,
                fix="Write the backbone with operations that ONNX has; please report it if it is.",
            )


def _size(network: DensityNetwork, name: str, values: Tensor) -> Tensor:
    """Return the largest finite number of each column, and at least its unit."""
    scaling = network.target_scaling
    least: Tensor | float = 0.0 if name == "draws" else 1.0
    if name in ("means", "draws") and network.transforms is None:
        values, least = values - scaling.location, scaling.scale
    size = torch.where(values.isfinite(), values, 0.0).abs()
    largest = size.amax(tuple(range(max(1, size.dim() - 1))))
    return torch.maximum(largest, torch.as_tensor(least, dtype=largest.dtype))
