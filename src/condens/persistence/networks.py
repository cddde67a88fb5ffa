"""Networks in model files: the architecture as a document, and the network back from it.

A document names only what condens knows: kinds of networks, backbones and heads, and numbers.
A network is built from it without memory (on the meta device), must describe itself by the
same document and need exactly the tensors that are there, and only then takes them.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from condens.distributions.dimensions import check_names
from condens.errors import ArgumentError, CondensError, ModelFileError
from condens.nn import (
    BACKBONES,
    HEADS,
    DensityNetwork,
    Ensemble,
    MixtureNetwork,
    backbone_from_dict,
    head_from_dict,
)
from condens.nn.adjustment import Limit, Spread, Tail, Trim
from condens.nn.base import empty_limit, empty_tail
from condens.nn.scaling import EMPTY, ConditionScaling, Standardiser
from condens.persistence.container import naming, read, write
from condens.persistence.header import canonical, reason, short
from condens.transforms import TRANSFORMS, Transform

Backbone = nn.Module | Callable[..., nn.Module]
# Makes the error for a fault of a network: of a file, or of the user's.
Refuse = Callable[..., CondensError]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
_CUSTOM = {"kind": "custom"}
_SPECIAL = "what is special belongs in the backbone."
KIND = "network"
# The parts of a network that are set after training.
ADJUSTMENTS = {"trim": Trim, "limit": Limit, "spread": Spread, "tail": Tail}


def save(
    network: DensityNetwork,
    path: str | os.PathLike[str],
    *,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Save a network to one safetensors file, whole or not at all.

    Equal networks give equal bytes. What was at `path` stays until the new file is safe; a link
    is followed, and stays.

    Args:
        network: a `MixtureNetwork` or an `Ensemble`.
        path: of the file, a new one or one to replace.
        training: notes on how it was trained, as JSON can hold them.

    >>> from tempfile import TemporaryDirectory
    >>> network, x = MixtureNetwork.of(3, 2).eval(), torch.zeros(1, 3)
    >>> with TemporaryDirectory() as place:
    ...     save(network, f"{place}/model.condens")
    ...     loaded = load(f"{place}/model.condens")
    >>> torch.equal(loaded(x).means, network(x).means)
    True
    """
    if not isinstance(network, DensityNetwork):
        raise ArgumentError(
            "network",
            got=f"is {type(network).__name__}",
            expected="a network of condens.nn was expected",
            fix="Pass the network itself; an MDNRegressor has a method save.",
        )
    document = {"kind": KIND, "network": network_to_dict(network), "training": dict(training or {})}
    write(path, document, network.state_dict())


def load(path: str | os.PathLike[str], *, backbone: Backbone | None = None) -> DensityNetwork:
    """Return the network of a file, on the CPU and in evaluation mode.

    Nothing in the file is run. A file whose content is not, to the bit, what was saved raises
    `ModelFileError`.

    Args:
        path: of the file.
        backbone: for a backbone that condens does not know: one like it, which is copied, or a
            function without arguments that makes one.
    """
    document, tensors = read(path)
    with naming(path):
        if document.get("kind") != KIND:
            raise ModelFileError(
                "its kind",
                got=f"is {short(document.get('kind'))}",
                expected="a network was expected",
                fix="Open it with condens.load.",
            )
        if document.keys() != {"kind", "network", "training"}:
            raise ModelFileError(
                "its document",
                got=f"has {short(sorted(document))}",
                expected="kind, network and training were expected",
            )
        return network_from_dict(document["network"], tensors, backbone=backbone)


def network_to_dict(network: DensityNetwork) -> dict[str, Any]:
    """Return the architecture of a network as JSON can hold it.

    >>> network_to_dict(MixtureNetwork.of(3, 2, n_components=5))["head"]["n_components"]
    5
    """
    document = _describe(network)
    known = _known(document, network.state_dict())
    refuse = partial(ArgumentError, fix=f"Save networks as condens makes them; {_SPECIAL}")
    _check_tensors(_build(document).state_dict(), known, refuse)
    _check_scales(network, refuse)
    return document


def network_from_dict(
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    prefix: str = "",
    backbone: Backbone | None = None,
) -> DensityNetwork:
    """Return the network of a document, in evaluation mode; it takes the tensors, not copies.

    Args:
        document: of `network_to_dict`.
        tensors: `network.state_dict(prefix=prefix)`; those without the prefix are left alone.
        prefix: of the tensors' names.
        backbone: for a backbone that condens does not know: one like it, which is copied, or a
            function without arguments that makes one.

    >>> network = MixtureNetwork.of(3, 2)
    >>> network_from_dict(network_to_dict(network), network.state_dict()).training
    False
    """
    tensors = _below(prefix, tensors)
    network = _checked(document, tensors)
    custom = {
        place: _instance(backbone, _below(f"{place}.", tensors))
        for place in _custom_places(document)
    }
    if backbone is not None and not custom:
        raise ArgumentError(
            "backbone",
            got="was given",
            expected="the file describes its backbone",
            fix="Leave it out.",
        )
    expected = dict(network.state_dict())
    for place, module in custom.items():
        expected |= module.state_dict(prefix=f"{place}.")
    _check_tensors(expected, tensors, ModelFileError)
    network.load_state_dict(_known(document, tensors), assign=True)
    _check_scales(network, ModelFileError)
    for place, module in custom.items():
        module.load_state_dict(_below(f"{place}.", tensors))
        network.set_submodule(place, module)
    # Two names of one tensor in a backbone can be two tensors in the file.
    for name, tensor in network.state_dict().items():
        if not torch.equal(tensor, tensors[name]):
            raise ModelFileError(
                f"tensor {short(name)}",
                got="has a value of its own",
                expected="the given backbone keeps another value for it",
                fix="Pass a backbone that shares the same tensors as the saved one.",
            )
    return network.eval()


def _describe(network: nn.Module, *, made: bool = False) -> dict[str, Any]:
    """Return the document of a network; `_build` reads what this writes, and has just `made` it."""
    if type(network) is Ensemble:
        return {
            "kind": "ensemble",
            "members": [_describe(member, made=made) for member in network.networks],
            "names": None if network.names is None else list(network.names),
            "adjustment": _describe_adjustment(network),
        }
    # A class derived from these may compute something else.
    if type(network) is not MixtureNetwork:
        raise _unknown("model", network, "a MixtureNetwork or an Ensemble was expected")
    head, scaling = network.head, network.condition_scaling
    if HEADS.get(head.covariance) is not type(head):
        raise _unknown("head", head, f"one of {', '.join(HEADS)} was expected")
    for transform in network.transforms or ():
        if TRANSFORMS.get(transform.kind) is not type(transform):
            raise _unknown("transforms", transform, f"one of {', '.join(TRANSFORMS)} was expected")
    return {
        "kind": "mixture",
        "backbone": _describe_backbone(network.backbone, made=made),
        "head": head.to_dict(),
        "condition_columns": None if scaling is None else len(scaling.location),
        "condition_codes": network.condition_codes,
        "unused": list(network.unused),
        "transforms": None
        if network.transforms is None
        else [transform.to_dict() for transform in network.transforms],
        "dtype": str(network.dtype).removeprefix("torch."),
        "names": None if network.names is None else list(network.names),
        "adjustment": _describe_adjustment(network),
    }


def _describe_adjustment(network: DensityNetwork) -> list[str]:
    """Return which parts a network has that are set after training."""
    for name, kind in ADJUSTMENTS.items():
        if type(part := getattr(network, name)) not in (kind, type(None)):
            raise _unknown(name, part, "one that condens.training.adjust makes was expected")
    return [name for name in ADJUSTMENTS if getattr(network, name) is not None]


def _build(document: Mapping[str, Any]) -> DensityNetwork:
    """Return the network of a document without memory, an Identity in place of custom backbones."""
    with torch.device("meta"):
        if document["kind"] == "ensemble":
            members: list[Any] = [_build(member) for member in document["members"]]
            return _add_adjustment(Ensemble(members), document["adjustment"])
        transforms = document["transforms"]
        network = MixtureNetwork(
            _build_backbone(document["backbone"]),
            head_from_dict(document["head"]),
            condition_columns=document["condition_columns"],
            condition_codes=document["condition_codes"],
            unused=document["unused"],
            transforms=None if transforms is None else list(map(Transform.from_dict, transforms)),
        )
    network.to(_DTYPES[document["dtype"]])
    network.names = check_names(document["names"], network.dimensions)
    with torch.device("meta"):
        return _add_adjustment(network, document["adjustment"])


def _add_adjustment(network: DensityNetwork, parts: list[str]) -> DensityNetwork:
    network.trim = Trim(0.5) if "trim" in parts else None
    network.limit = empty_limit(network) if "limit" in parts else None
    network.spread = Spread() if "spread" in parts else None
    network.tail = empty_tail(network) if "tail" in parts else None
    return network


def _describe_backbone(backbone: nn.Module, *, made: bool) -> dict[str, Any]:
    kind = getattr(backbone, "kind", None)
    if not isinstance(kind, str) or BACKBONES.get(kind) is not type(backbone):
        return dict(_CUSTOM)
    document = backbone.to_dict()
    # Not what it was made as if a layer of it was exchanged.
    with torch.device("meta"):
        same = made or _layers(_build_backbone(document)) == _layers(backbone)
    return document if same else dict(_CUSTOM)


def _layers(module: nn.Module) -> list[tuple[str, type, str]]:
    """Return what a module consists of, in any precision and on any device."""
    return [
        # The extra_repr of a list of parameters has both; its tensors are compared anyway.
        (name, type(m), "" if isinstance(m, nn.ParameterList) else m.extra_repr())
        for name, m in module.named_modules()
    ]


def _build_backbone(document: Mapping[str, Any]) -> nn.Module:
    return nn.Identity() if document["kind"] == "custom" else backbone_from_dict(document)


def _checked(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> DensityNetwork:
    """Build the network of a document that nothing is known of."""
    elements, left = sum(tensor.numel() for tensor in tensors.values()), len(tensors)
    for name, value in _sizes("", document):
        # No size exceeds the count of numbers in the file, and every layer, head and scaling
        # has tensors: what is built is no larger than what the file holds.
        most = left // 2 if name == "depth" else elements
        if not 0 <= value <= most or left < 0:
            raise ModelFileError(
                "its architecture",
                got=f"has {name} {short(value)}",
                expected=f"the tensors of the file allow {most}",
            )
        left -= 2 * value if name == "depth" else 4 if name == "n_components" else 0
    try:
        network = _build(document)
        again = canonical(_describe(network, made=True))
    except Exception as error:  # a constructor may refuse wrong values in any way
        raise ModelFileError(
            "its architecture",
            got=f"cannot be built ({reason(error)})",
            expected="one that condens knows was expected",
        ) from error
    if again != canonical(document):
        raise ModelFileError(
            "its architecture",
            got=f"is {short(canonical(document))}",
            expected=f"it would be written {short(again)}",
        )
    return network


def _sizes(name: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of an architecture; the bounds of targets are no sizes."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if key != "transforms":
                yield from _sizes(key, child)
    elif isinstance(value, list):
        for child in value:
            yield from _sizes(name, child)
    elif type(value) is int:
        yield name, value


def _custom_places(document: Mapping[str, Any]) -> list[str]:
    if document["kind"] == "ensemble":
        return [
            f"networks.{i}.{place}"
            for i, member in enumerate(document["members"])
            for place in _custom_places(member)
        ]
    return ["backbone"] if document["backbone"] == _CUSTOM else []


def _instance(backbone: Backbone | None, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a custom backbone, in the precision of the tensors that it will take."""
    if backbone is None:
        raise ModelFileError(
            "its backbone",
            got="is not one of condens",
            expected="a file holds only its weights",
            fix="Pass backbone=, a function that makes one like it.",
        )
    if isinstance(backbone, nn.Module):
        made = copy.deepcopy(backbone)
    else:
        made = backbone() if callable(backbone) else backbone
    if not isinstance(made, nn.Module):
        raise ArgumentError(
            "backbone",
            got=f"gives {type(made).__name__}",
            expected="a torch.nn.Module was expected",
            fix="Pass a module, or a function without arguments that returns one.",
        )
    floats = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    return made.to(floats.pop()) if len(floats) == 1 else made


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _known(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors outside custom backbones."""
    custom = tuple(f"{place}." for place in _custom_places(document))
    return {name: t for name, t in tensors.items() if not name.startswith(custom)}


def _check_tensors(
    expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], refuse: Refuse
) -> None:
    """Refuse tensors that are missing, unknown, or of another shape or precision."""
    for name in sorted(expected.keys() | tensors.keys()):
        ours, theirs, subject = tensors.get(name), expected.get(name), f"tensor {short(name)}"
        if ours is None or theirs is None:
            raise refuse(
                subject,
                got="is missing" if ours is None else "is there",
                expected=f"the architecture has {'it' if ours is None else 'no such tensor'}",
            )
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise refuse(
                subject,
                got=f"has shape {list(ours.shape)} and {ours.dtype}",
                expected=f"{list(theirs.shape)} and {theirs.dtype} fit",
            )


def _check_scales(network: nn.Module, refuse: Refuse) -> None:
    """Refuse scalings that cannot be used."""
    for name, module in network.named_modules():
        if isinstance(module, Standardiser):
            codes = slice(module.free, None)
            if not bool((module.scale > 0).all()):
                raise refuse(f"{name}.scale", got="is not above zero", expected="a scale divides")
            if bool(((module.location[codes] != 0) | (module.scale[codes] != 1)).any()):
                raise refuse(name, got="changes codes", expected="categories stay as they are")
        if isinstance(module, ConditionScaling):
            # Every column has a range or an empty one; codes have none.
            empty = (module.lower == EMPTY) & (module.upper == -EMPTY)
            whole = empty | (module.lower <= module.upper)
            if not bool(whole.all() & empty[module.free :].all()):
                raise refuse(
                    name,
                    got="has bounds that are no range",
                    expected="lower ≤ upper was expected",
                )
        if isinstance(module, Limit) and not bool((module.reach > 0).all()):
            raise refuse(name, got="is not above zero", expected="distances are")
        if isinstance(module, Limit | Spread) and not bool(module.factor > 0):
            raise refuse(name, got="is not above zero", expected="it multiplies deviations")
        if isinstance(module, Tail | Trim):
            weight = module.weight if isinstance(module, Tail) else module.part
            if not bool((weight > 0) & (weight < 1)):
                raise refuse(name, got="has no weight between 0 and 1", expected="it is a part")


def _unknown(argument: str, value: object, expected: str) -> ArgumentError:
    return ArgumentError(
        argument,
        got=f"is {type(value).__name__}",
        expected=expected,
        fix=f"Use one of these; {_SPECIAL}",
    )
