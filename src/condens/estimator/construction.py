"""What a regressor's parameters ask for: checked, and the maps and networks they mean."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from torch import Generator, nn

from condens.errors import ArgumentError, DimensionError, ShapeError
from condens.nn import HEADS, DensityNetwork, Ensemble, MixtureNetwork
from condens.nn.randomness import torch_seeded_by
from condens.persistence import network_to_dict
from condens.training import Settings
from condens.transforms import Transform, choice
from condens.transforms import kinds as transforms


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_share(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < 1


def _is_flag(value: Any) -> bool:
    # Whole numbers, as in scikit-learn, and numpy's booleans, which are none.
    return isinstance(value, Integral) or type(value).__name__ in ("bool", "bool_")


_COUNT = "a whole number from 1"
_SHARE, _SOME = "a share from 0 to below 1", "Pass 0 for none, or a share such as 0.1."
_EITHER = "Pass True or False."

# What fits, and what is told where something else came: what was expected, and what to do.
_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "n_components": (
        lambda value: (
            value is None or _is_count(value) or (isinstance(value, str) and value == "auto")
        ),
        'a whole number from 1, "auto" or None',
        "Pass a number such as 5, or leave it out: what suits the number of rows is taken.",
    ),
    "covariance": (
        lambda value: isinstance(value, str) and value in HEADS,
        f"one of {', '.join(HEADS)}",
        'Choose one of these; "full" has every correlation.',
    ),
    "width": (_is_count, _COUNT, "Pass a number such as 128."),
    "depth": (_is_count, _COUNT, "Pass a number such as 2."),
    "dropout": (_is_share, _SHARE, _SOME),
    "n_members": (_is_count, _COUNT, "Pass 1 for one network, or a number such as 5."),
    "calibration_fraction": (_is_share, _SHARE, _SOME),
    "backbone": (
        lambda value: value is None or (callable(value) and not isinstance(value, nn.Module)),
        "a function that makes a module from the number of columns, or None,",
        "Pass the class or a function, not a module: every network gets one of its own.",
    ),
    "settings": (
        lambda value: value is None or isinstance(value, Settings),
        "condens.training.Settings or None",
        "Pass Settings(epochs=50), for instance, or leave it out for what suits the rows.",
    ),
    "warm_start": (_is_flag, "True or False", _EITHER),
    "verbose": (_is_flag, "True or False", _EITHER),
}


def check_parameters(model: Any) -> None:
    """Refuse, by name, parameters that no model can be fitted with."""
    for name in _EXPECTED:
        check_parameter(name, getattr(model, name))


def check_parameter(name: str, value: Any) -> None:
    """Refuse a parameter that no model can be fitted with."""
    fits, expected, remedy = _EXPECTED[name]
    if fits(value):
        return
    if name == "settings" and isinstance(value, Mapping):
        given = ", ".join(f"{key}={part!r}" for key, part in value.items())
        remedy = f"Pass settings=Settings({given}), with Settings from condens.training."
    raise ArgumentError(name, got=f"is {value!r}", expected=f"{expected} was expected", fix=remedy)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not _is_flag(value):
        raise ArgumentError(
            name,
            got=f"is a {type(value).__name__}",
            expected="True or False was expected",
            fix=_EITHER,
        )


def transforms_asked_for(spec: Any, labels: Sequence[str | int]) -> list[Any]:
    """Return what `target_transform` asks for each target; None where it says nothing.

    >>> transforms_asked_for({"price": "positive"}, ["price", "lat"])
    ['positive', None]
    """
    if isinstance(spec, Mapping):
        for name in spec:
            if name not in labels:
                raise DimensionError(
                    "target_transform",
                    got=f"has {name!r}",
                    expected=f"the targets are {list(labels)}",
                    fix="Use these.",
                )
        specs = [spec.get(name) for name in labels]
    else:
        specs = spec if isinstance(spec, list) else [spec] * len(labels)
    if len(specs) != len(labels):
        raise ShapeError(
            "target_transform",
            got=f"has {len(specs)} entries",
            expected=f"there are {len(labels)} target(s)",
            fix="Pass one for each.",
        )
    return specs


def choose_transforms(
    spec: Any, labels: Sequence[str | int], propose: Callable[[int], Transform]
) -> tuple[Transform, ...]:
    """Return the map of each target from what a user asks for.

    Args:
        spec: `target_transform`.
        labels: the targets' names or numbers.
        propose: returns the map of the target at a place where "auto" is asked for.

    >>> choose_transforms({"price": "positive"}, ["price", "lat"], lambda place: maps.Real())
    (Positive(lower=0.0), Real())
    """
    return tuple(
        propose(place)
        if isinstance(given, str) and given == "auto"
        else choice.resolve("real" if given is None else given, "target_transform")
        for place, given in enumerate(transforms_asked_for(spec, labels))
    )


def make_network(model: Any, n_components: int, *, generator: Generator) -> MixtureNetwork:
    """Return a network for the columns that a regressor has read, not trained.

    A backbone of the user's is made with torch's generator seeded by this one.
    """
    columns, codes = model.encoder_.columns, model.encoder_.categories
    real = all(isinstance(own, transforms.Real) for own in model.transforms_)
    if model.covariance == "low_rank" and not real:
        raise ArgumentError(
            "target_transform",
            got="goes with covariance='low_rank'",
            expected="only the others can be transformed",
            fix="Choose another covariance, or leave the targets as they are.",
        )
    options: dict[str, Any] = {
        "names": model.target_names_,
        "transforms": None if real else model.transforms_,
    }
    if model.backbone is None:
        return MixtureNetwork.of(
            columns,
            model.n_targets_,
            n_components=int(n_components),
            covariance=model.covariance,
            width=int(model.width),
            depth=int(model.depth),
            dropout=float(model.dropout),
            categories=codes,
            generator=generator,
            **options,
        )
    with torch_seeded_by(generator):
        backbone, features = _make_backbone(model.backbone, columns)
    head = HEADS[model.covariance](
        features, model.n_targets_, int(n_components), generator=generator
    )
    return MixtureNetwork(
        backbone, head, condition_columns=columns, condition_codes=len(codes), **options
    )


def make_networks(model: Any, n_components: int, *, generator: Generator) -> DensityNetwork:
    """Return a network, or an ensemble where several members are asked for."""
    if model.n_members == 1:
        return make_network(model, n_components, generator=generator)
    members = range(model.n_members)
    return Ensemble([make_network(model, n_components, generator=generator) for _ in members])


def check_kept(model: Any) -> None:
    """Refuse to go on training a network that is not the one the parameters ask for."""
    fitted: Any = model.network_
    labels = model.target_names_ or range(model.n_targets_)
    if (
        choose_transforms(model.target_transform, labels, lambda place: model.transforms_[place])
        != model.transforms_
    ):
        raise _changed("target_transform")
    n_components = model.n_components
    if n_components is None or n_components == "auto":
        first = fitted.members[0] if isinstance(fitted, Ensemble) else fitted
        n_components = first.head.n_components
    asked = make_networks(model, n_components, generator=Generator()).double()
    ours, theirs = (set(_leaves(network_to_dict(network))) for network in (asked, fitted))
    if ours != theirs:
        raise _changed(min(ours ^ theirs, key=str)[0])


def _make_backbone(make: Callable[[int], Any], columns: int) -> tuple[nn.Module, int]:
    backbone = make(columns)
    features = getattr(backbone, "features", None)
    if not isinstance(backbone, nn.Module) or not isinstance(features, int):
        raise ArgumentError(
            "backbone",
            got=f"made a {type(backbone).__name__} whose features are {features!r}",
            expected="a torch.nn.Module was expected that tells their number",
            fix="Set self.features in it.",
        )
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
    return ArgumentError(
        "the parameters",
        got=f"({what}) changed since the fit",
        expected="training goes on with the network of it",
        fix="Set them back, or fit anew with warm_start=False.",
    )
