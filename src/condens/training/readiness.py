"""Whether a network can be trained, asked before anything is done to it."""

from typing import Any

import torch
from torch import nn

from condens.data import Rows
from condens.errors import ArgumentError, KindError, NotFiniteError, message
from condens.nn import DensityNetwork, Head
from condens.nn.randomness import draws_from_torch
from condens.training.settings import Settings


def check_arguments(network: Any, checkpoint_seconds: Any, callback: Any) -> None:
    """Refuse, by name, what `train` cannot work with."""
    if not isinstance(network, DensityNetwork):
        kind = isinstance(network, type)
        came = f"is {'the class' if kind else 'a'} {(network if kind else type(network)).__name__}"
        remedy = (
            "Make it the backbone of one: MixtureNetwork(backbone, head)."
            if isinstance(network, nn.Module)
            else "Pass one, such as MixtureNetwork.of(conditions, targets)."
        )
        raise KindError(message("network", came, "a DensityNetwork was expected", remedy))
    if not isinstance(checkpoint_seconds, int | float) or not checkpoint_seconds >= 0:
        came, expected = f"is {checkpoint_seconds!r}", "0 or more was expected"
        raise ArgumentError(message("checkpoint_seconds", came, expected, "Change it."))
    if callback is not None and not callable(callback):
        came, expected = f"is a {type(callback).__name__}", "a function of an Epoch was expected"
        raise KindError(message("callback", came, expected, "Pass one, or leave it out."))


def check_trainable(network: DensityNetwork, settings: Settings) -> None:
    """Refuse networks that no step can change, or that a start would change against their will."""
    named = dict(network.named_parameters())
    for name, parameter in named.items():
        if isinstance(parameter, nn.UninitializedParameter):
            came, expected = f"has {name}, which has no shape yet", "every layer's size is needed"
            remedy = "Call the backbone once with some standardised conditions."
            raise ArgumentError(message("network", came, expected, remedy))
        if parameter.is_inference():
            came = f"has {name}, made under torch.inference_mode"
            expected, remedy = "such tensors have no gradient", "Make the network outside of it."
            raise ArgumentError(message("network", came, expected, remedy))
    if not any(parameter.requires_grad for parameter in named.values()):
        came, expected = "has no parameter that requires a gradient", "training changes some"
        remedy = "Call network.requires_grad_(True), or on the part to be trained."
        raise ArgumentError(message("network", came, expected, remedy))
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in named.values()}
    # Modules of others may know what they do.
    if len(dtypes) > 1 and not draws_from_torch(network):
        came, expected = f"is in {' and '.join(sorted(dtypes))}", "one precision was expected"
        raise ArgumentError(message("network", came, expected, "Call network.float()."))
    heads = [module for module in network.modules() if isinstance(module, Head)]
    if settings.start == "data" and any(not head.linear.bias.requires_grad for head in heads):
        came, expected = "has a head whose bias is frozen", "start='data' would place it anew"
        raise ArgumentError(message("network", came, expected, "Pass Settings(start='keep')."))


def check_place(network: DensityNetwork, rows: Rows) -> None:
    """Refuse rows on another device than the network's."""
    ours = network.target_scaling.scale.device
    if rows.target.device != ours:
        came, expected = f"is on {rows.target.device}", f"the network is on {ours}"
        raise ArgumentError(message("target", came, expected, "Move either to the other's."))


@torch.no_grad()
def check_weights(network: DensityNetwork) -> None:
    """Refuse to start from weights that no step can repair."""
    for name, parameter in network.named_parameters():
        if not bool(parameter.isfinite().all()):
            came, expected = f"has NaN or infinity in {name}", "training starts from its weights"
            raise NotFiniteError(message("network", came, expected, "Make it anew."))
