"""Whether a network can be trained, asked before anything is done to it."""

from typing import Any

import torch
from torch import nn

from condens.data import Rows
from condens.errors import ArgumentError, KindError, NotFiniteError
from condens.nn import DensityNetwork, Head
from condens.nn.randomness import draws_from_torch
from condens.training.settings import Settings


def check_arguments(network: Any, checkpoint_seconds: Any, callback: Any) -> None:
    """Refuse, by name, what `train` cannot work with."""
    if not isinstance(network, DensityNetwork):
        kind = isinstance(network, type)
        raise KindError(
            "network",
            got=f"is {'the class' if kind else 'a'} "
            f"{(network if kind else type(network)).__name__}",
            expected="a DensityNetwork was expected",
            fix="Make it the backbone of one: MixtureNetwork(backbone, head)."
            if isinstance(network, nn.Module)
            else "Pass one, such as MixtureNetwork.of(conditions, targets).",
        )
    if not isinstance(checkpoint_seconds, int | float) or not checkpoint_seconds >= 0:
        raise ArgumentError(
            "checkpoint_seconds",
            got=f"is {checkpoint_seconds!r}",
            expected="0 or more was expected",
            fix="Change it.",
        )
    if callback is not None and not callable(callback):
        raise KindError(
            "callback",
            got=f"is a {type(callback).__name__}",
            expected="a function of an Epoch was expected",
            fix="Pass one, or leave it out.",
        )


def check_trainable(network: DensityNetwork, settings: Settings) -> None:
    """Refuse networks that no step can change, or that a start would change against their will."""
    named = dict(network.named_parameters())
    for name, parameter in named.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ArgumentError(
                "network",
                got=f"has {name}, which has no shape yet",
                expected="every layer's size is needed",
                fix="Call the backbone once with some standardised conditions.",
            )
        if parameter.is_inference():
            raise ArgumentError(
                "network",
                got=f"has {name}, made under torch.inference_mode",
                expected="such tensors have no gradient",
                fix="Make the network outside of it.",
            )
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ArgumentError(
            "network",
            got="has no parameter that requires a gradient",
            expected="training changes some",
            fix="Call network.requires_grad_(True), or on the part to be trained.",
        )
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in named.values()}
    # Modules of others may know what they do.
    if len(dtypes) > 1 and not draws_from_torch(network):
        raise ArgumentError(
            "network",
            got=f"is in {' and '.join(sorted(dtypes))}",
            expected="one precision was expected",
            fix="Call network.float().",
        )
    heads = [module for module in network.modules() if isinstance(module, Head)]
    if settings.start == "data" and any(not head.linear.bias.requires_grad for head in heads):
        raise ArgumentError(
            "network",
            got="has a head whose bias is frozen",
            expected="start='data' would place it anew",
            fix="Pass Settings(start='keep').",
        )


def check_place(network: DensityNetwork, rows: Rows) -> None:
    """Refuse rows on another device than the network's."""
    ours = network.target_scaling.scale.device
    if rows.target.device != ours:
        raise ArgumentError(
            "target",
            got=f"is on {rows.target.device}",
            expected=f"the network is on {ours}",
            fix="Move either to the other's.",
        )


@torch.no_grad()
def check_weights(network: DensityNetwork) -> None:
    """Refuse to start from weights that no step can repair."""
    for name, parameter in network.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise NotFiniteError(
                "network",
                got=f"has NaN or infinity in {name}",
                expected="training starts from its weights",
                fix="Make it anew.",
            )
