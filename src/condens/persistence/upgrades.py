"""What makes files of earlier formats those of the next one."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from condens.nn.scaling import EMPTY

Document = dict[str, Any]
Tensors = dict[str, Tensor]


def _without_bounds(document: Document, tensors: Tensors) -> tuple[Document, Tensors]:
    """Upgrade format 1: scales had no ceiling, and conditions of any size were read as they are."""
    for head in _heads(document.get("network")):
        head.setdefault("ceiling", None)
    ranges: Tensors = {}
    for name, tensor in tensors.items():
        start, _, last = name.rpartition(".")
        if last == "location" and start.endswith("condition_scaling"):
            empty = torch.full(tensor.shape, EMPTY, dtype=torch.float64)
            ranges |= {f"{start}.lower": empty, f"{start}.upper": -empty}
    return document, ranges | tensors


def _heads(network: Any) -> Iterator[Document]:
    """Yield the heads of an architecture, of which nothing is known yet."""
    if isinstance(network, Mapping):
        members = network.get("members")
        for member in members if isinstance(members, list) else ():
            yield from _heads(member)
        if isinstance(network.get("head"), dict):
            yield network["head"]


# By version.
UPGRADES: Mapping[int, Callable[[Document, Tensors], tuple[Document, Tensors]]] = {
    1: _without_bounds
}
