"""Comparison of an exported file with its network, before it is written."""

import copy

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor

from condens.errors import ArgumentError, ShapeError
from condens.functional.sampling import from_latent, pick
from condens.integrations.onnx.graph import Graph
from condens.nn import DensityNetwork

# Largest difference of file and network, relative to the largest number of a column.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
TRIAL_ROWS, DRAWS_PER_ROW = 17, 3
# Distances from the training range, in widths of it, at which a file is tried too: where conditions
# are unchanged, where they are pulled in, and where they no longer grow.
TRIAL_DISTANCES = (0.4, 0.55, 0.7, 2.0, 1e6)
# Inputs whose first axis is that of the draws.
RANDOM = ("noise", "uniform")


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
    mixture = network(condition)
    target = mixture.sample(generator=generator)
    shape = (DRAWS_PER_ROW, *target.shape)
    noise = torch.randn(shape, generator=generator, dtype=network.dtype)
    # In the middle of a component's interval, where rounding cannot choose another.
    chosen = torch.multinomial(mixture.weights, DRAWS_PER_ROW, True, generator=generator)
    middles = mixture.weights.cumsum(-1) - 0.5 * mixture.weights
    uniform = middles.gather(-1, chosen).mT.contiguous()
    known = {"condition": condition, "target": target, "noise": noise, "uniform": uniform}
    return tuple(known[name] for name in graph.inputs)


def far_condition(network: DensityNetwork) -> Tensor | None:
    """Return conditions outside the training range, on both sides of it; None without a range."""
    scaling = network.condition_scaling
    if scaling is None or not bool((scaling.lower <= scaling.upper).all()):
        return None
    steps = torch.tensor(TRIAL_DISTANCES, dtype=torch.float64).unsqueeze(-1)
    width = torch.maximum(scaling.upper - scaling.lower, scaling.scale)
    rows = torch.cat([scaling.lower - steps * width, scaling.upper + steps * width])
    largest = torch.finfo(network.dtype).max
    return rows.clamp(-largest, largest)


def first_row(graph: Graph, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the inputs of a batch of one."""
    pairs = zip(graph.inputs, inputs, strict=True)
    return tuple(given[:, :1] if name in RANDOM else given[:1] for name, given in pairs)


@torch.no_grad()
def _answers(network: DensityNetwork, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return what the network itself answers, in the order of a graph's outputs."""
    condition = given["condition"]
    if "target" in given:
        return (-network.nll(condition, given["target"]),)
    read = network.standardise_condition(condition)
    real = network.target_scaling.inverse(network.mixture_of(read))
    logits, means, factors = tuple(real.parameters)
    if "noise" not in given:
        return torch.log_softmax(logits, -1), means, factors
    component = pick(given["uniform"].double(), torch.softmax(logits, -1).cumsum(-1))
    means, factors = (tensor[range(len(condition)), component] for tensor in (means, factors))
    draws = from_latent(given["noise"].double(), means, factors)
    if network.transforms is not None:
        pairs = zip(network.transforms, draws.unbind(-1), strict=True)
        draws = torch.stack([t.nearest(t.from_real(x).to(network.dtype)) for t, x in pairs], -1)
    return (draws,)


def check_agreement(data: bytes, graph: Graph, inputs: tuple[Tensor, ...]) -> None:
    """Raise unless a file's answers in onnxruntime are the network's."""
    import onnxruntime

    given = dict(zip(graph.inputs, inputs, strict=True))
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    network = graph.network
    answers = _answers(network, given), _answers(copy.deepcopy(network).double(), given)
    for name, output, single, double in zip(graph.outputs, outputs, *answers, strict=True):
        ours, theirs = torch.as_tensor(output).double(), single.double()
        # In float32, also the rounding of the weights and of a column with an offset.
        rounding = 10 * (theirs - double).nan_to_num(0.0, 0.0, 0.0).abs().amax()
        rounding = rounding + torch.finfo(network.dtype).eps * theirs.nan_to_num(0, 0, 0).abs()
        allowed = TOLERANCE[network.dtype] * _size(network, name, theirs) + rounding
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
    size = torch.where(values.isfinite(), values, 0.0).abs()
    largest = size.amax(tuple(range(max(1, size.dim() - 1))))
    return torch.maximum(largest, torch.as_tensor(least, dtype=largest.dtype))
