"""What a regressor's parameters ask for: checked, and the maps and networks they mean."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from torch import Generator, nn

from condens import map_choice, maps
from condens.errors import ArgumentError, DimensionError, ShapeError, message
from condens.maps import Map
from condens.nn import HEADS, DensityNetwork, Ensemble, MixtureNetwork
from condens.nn.randomness import torch_seeded_by
from condens.persistence import network_document
from condens.training import Settings


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_share(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < 1


# What fits, and what is told where something else came.
_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "n_components": (
        lambda value: (
            value is None or _is_count(value) or (isinstance(value, str) and value == "auto")
        ),
        'a whole number from 1, "auto" or None',
    ),
    "covariance": (
        lambda value: isinstance(value, str) and value in HEADS,
        f"one of {', '.join(HEADS)}",
    ),
    "width": (_is_count, "a whole number from 1"),
    "depth": (_is_count, "a whole number from 1"),
    "dropout": (_is_share, "a share from 0 to below 1"),
    "n_members": (_is_count, "a whole number from 1"),
    "calibration_fraction": (_is_share, "a share from 0 to below 1"),
    "backbone": (
        lambda value: value is None or (callable(value) and not isinstance(value, nn.Module)),
        "a function that makes a module from the number of columns, or None,",
    ),
    "settings": (
        lambda value: value is None or isinstance(value, Settings),
        "condens.training.Settings or None",
    ),
}


def check_parameters(model: Any) -> None:
    """Refuse, by name, parameters that no model can be fitted with."""
    for name, (fits, expected) in _EXPECTED.items():
        value = getattr(model, name)
        if not fits(value):
            came = f"is {value!r}"
            raise ArgumentError(message(name, came, f"{expected} was expected", "Change it."))


def choose_maps(
    spec: Any, labels: Sequence[str | int], propose: Callable[[int], Map]
) -> tuple[Map, ...]:
    """Return the map of each target from what a user asks for.

    Args:
        spec: `target_transform`.
        labels: the targets' names or numbers.
        propose: returns the map of the target at a place where "auto" is asked for.

    >>> choose_maps({"price": "positive"}, ["price", "lat"], lambda place: maps.Real())
    (Positive(lower=0.0), Real())
    """
    if isinstance(spec, Mapping):
        for name in spec:
            if name not in labels:
                came, expected = f"has {name!r}", f"the targets are {list(labels)}"
                raise DimensionError(message("target_transform", came, expected, "Use these."))
        specs = [spec.get(name) for name in labels]
    else:
        specs = spec if isinstance(spec, list) else [spec] * len(labels)
    if len(specs) != len(labels):
        came, expected = f"has {len(specs)} entries", f"there are {len(labels)} target(s)"
        raise ShapeError(message("target_transform", came, expected, "Pass one for each."))
    return tuple(
        propose(place)
        if isinstance(given, str) and given == "auto"
        else map_choice.resolve("real" if given is None else given, "target_transform")
        for place, given in enumerate(specs)
    )


def make_network(model: Any, components: int, *, generator: Generator) -> MixtureNetwork:
    """Return a network for the columns that a regressor has read, not trained.

    A backbone of the user's is made with torch's generator seeded by this one.
    """
    columns, codes = model.encoder_.columns, model.encoder_.categories
    real = all(isinstance(own, maps.Real) for own in model.maps_)
    if model.covariance == "low_rank" and not real:
        came, expected = "goes with covariance='low_rank'", "only the others can be transformed"
        remedy = "Choose another covariance, or leave the targets as they are."
        raise ArgumentError(message("target_transform", came, expected, remedy))
    options: dict[str, Any] = {
        "names": model.target_names_,
        "maps": None if real else model.maps_,
    }
    if model.backbone is None:
        return MixtureNetwork.of(
            columns,
            model.n_targets_,
            components=int(components),
            structure=model.covariance,
            width=int(model.width),
            depth=int(model.depth),
            dropout=float(model.dropout),
            categories=codes,
            generator=generator,
            **options,
        )
    with torch_seeded_by(generator):
        backbone, features = _make_backbone(model.backbone, columns)
    head = HEADS[model.covariance](features, model.n_targets_, int(components), generator=generator)
    return MixtureNetwork(
        backbone, head, condition_columns=columns, condition_codes=len(codes), **options
    )


def make_networks(model: Any, components: int, *, generator: Generator) -> DensityNetwork:
    """Return a network, or an ensemble where several members are asked for."""
    if model.n_members == 1:
        return make_network(model, components, generator=generator)
    members = range(model.n_members)
    return Ensemble([make_network(model, components, generator=generator) for _ in members])


def check_kept(model: Any) -> None:
    """Refuse to go on training a network that is not the one the parameters ask for."""
    fitted: Any = model.network_
    labels = model.target_names_ or range(model.n_targets_)
    if choose_maps(model.target_transform, labels, lambda place: model.maps_[place]) != model.maps_:
        raise _changed("target_transform")
    components = model.n_components
    if components is None or components == "auto":
        first = fitted.members[0] if isinstance(fitted, Ensemble) else fitted
        components = first.head.components
    asked = make_networks(model, components, generator=Generator()).double()
    ours, theirs = (set(_leaves(network_document(network))) for network in (asked, fitted))
    if ours != theirs:
        raise _changed(min(ours ^ theirs, key=str)[0])


def _make_backbone(make: Callable[[int], Any], columns: int) -> tuple[nn.Module, int]:
    backbone = make(columns)
    features = getattr(backbone, "features", None)
    if not isinstance(backbone, nn.Module) or not isinstance(features, int):
        came = f"made a {type(backbone).__name__} whose features are {features!r}"
        expected = "a torch.nn.Module was expected that tells their number"
        raise ArgumentError(message("backbone", came, expected, "Set self.features in it."))
    return backbone, features


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a document, each with where it lies."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{place}.{number}".lstrip("."))
    else:
        yield place, value


def _changed(what: str) -> ArgumentError:
    came, expected = f"({what}) changed since the fit", "training goes on with the network of it"
    remedy = "Set them back, or fit anew with warm_start=False."
    return ArgumentError(message("the parameters", came, expected, remedy))
