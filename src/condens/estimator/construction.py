"""Parameters of a model: checked by name, and turned into networks and settings."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Generator, nn

from condens.errors import ArgumentError, DimensionError, ShapeError
from condens.nn import HEADS, DensityNetwork, Ensemble, Head, MixtureNetwork
from condens.nn.randomness import torch_seeded_by
from condens.persistence import network_to_dict
from condens.scalars import as_choice, as_fraction, as_real, as_whole, refused
from condens.training import Settings
from condens.transforms import Real, Transform, choice

# Parameters that are also fields of `Settings`.
SETTING_NAMES = ("epochs", "batch_size", "learning_rate", "validation_fraction")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The networks of a model, without their number of components.

    Args:
        n_columns: of the condition, codes of categories included.
        n_targets: D.
        categories: the number of codes of every column of codes; these come last.
        names: of the targets.
        transforms: of the targets, one for each; None where all of them are real.
        covariance: see `condens.nn.HEADS`.
        rank: of low-rank covariances; None for the head's default.
        floor: smallest scale of the standardised targets; None for the head's default.
        width, depth, dropout: of the MLP.
        n_members: networks in an ensemble.
        backbone: makes a module from the number of columns, in place of the MLP.
    """

    n_columns: int
    n_targets: int
    categories: Sequence[int] = ()
    names: tuple[str, ...] | None = None
    transforms: Sequence[Transform] | None = None
    covariance: str = "full"
    rank: int | None = None
    floor: float | None = None
    width: int = 128
    depth: int = 2
    dropout: float = 0.0
    n_members: int = 1
    backbone: Callable[[int], nn.Module] | None = None

    def network(self, n_components: int, *, generator: Generator) -> MixtureNetwork:
        """Return one untrained network.

        A user's backbone is made with torch's generator seeded by this one.
        """
        transforms = None if all(_is_real(t) for t in self.transforms or ()) else self.transforms
        if self.covariance == "low_rank" and transforms is not None:
            raise ArgumentError(
                "target_transform",
                got="goes with covariance='low_rank'",
                expected="only the other covariances have transformed targets",
                fix="Choose another covariance, or leave target_transform out.",
            )
        options: dict[str, Any] = {"floor": self.floor, "rank": self.rank}
        options = {name: value for name, value in options.items() if value is not None}
        if self.backbone is None:
            return MixtureNetwork.of(
                self.n_columns,
                self.n_targets,
                n_components=n_components,
                covariance=self.covariance,
                width=self.width,
                depth=self.depth,
                dropout=self.dropout,
                categories=self.categories,
                names=self.names,
                transforms=transforms,
                generator=generator,
                **options,
            )
        with torch_seeded_by(generator):
            backbone = self.backbone(self.n_columns)
        features = getattr(backbone, "features", None)
        if not isinstance(backbone, nn.Module) or not isinstance(features, int):
            raise ArgumentError(
                "backbone",
                got=f"made a {type(backbone).__name__} whose features are {features!r}",
                expected="a torch.nn.Module with their number as attribute was expected",
                fix="Set self.features in it.",
            )
        head = HEADS[self.covariance](
            features, self.n_targets, n_components, generator=generator, **options
        )
        return MixtureNetwork(
            backbone,
            head,
            condition_columns=self.n_columns,
            condition_codes=len(self.categories),
            names=self.names,
            transforms=transforms,
        )

    def networks(self, n_components: int, *, generator: Generator) -> DensityNetwork:
        """Return an untrained network, or an ensemble of several members."""
        members = [self.network(n_components, generator=generator) for _ in range(self.n_members)]
        return members[0] if self.n_members == 1 else Ensemble(members)

    def check_unchanged(self, fitted: DensityNetwork, n_components: int | str | None) -> None:
        """Refuse to go on training a network that the parameters no longer describe."""
        count = n_components if isinstance(n_components, int) else n_components_of(fitted)
        asked = self.networks(count, generator=Generator()).double()
        ours, theirs = (set(_leaves(network_to_dict(network))) for network in (asked, fitted))
        if ours != theirs:
            raise changed(min(ours ^ theirs, key=str)[0])


def n_components_of(network: DensityNetwork) -> int:
    """Return the number of components of a network, or of each member of an ensemble."""
    return next(m.n_components for m in network.modules() if isinstance(m, Head))


def changed(parameter: str) -> ArgumentError:
    """Return the error for a parameter that no longer describes the fitted network."""
    return ArgumentError(
        "the parameters",
        got=f"({parameter}) changed since the fit",
        expected="training continues with the fitted network",
        fix="Set them back, or start again with warm_start=False.",
    )


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a document, each with its path."""
    if isinstance(value, Mapping | list):
        for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(part, f"{place}.{name}".lstrip("."))
    else:
        yield place, value


def _is_real(transform: Transform) -> bool:
    return isinstance(transform, Real)


# Transforms of the targets.


def requested_transforms(spec: Any, labels: Sequence[str | int]) -> list[Any]:
    """Return the entry of `target_transform` for each target, None where it has none.

    >>> requested_transforms({"price": "positive"}, ["price", "lat"])
    ['positive', None]
    """
    if isinstance(spec, Mapping):
        for name in spec:
            if name not in labels:
                raise DimensionError(
                    "target_transform",
                    got=f"has {name!r}",
                    expected=f"the targets are {list(labels)}",
                    fix="Use their names.",
                )
        return [spec.get(name) for name in labels]
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
    """Return the transform of each target.

    Args:
        spec: `target_transform`.
        labels: the targets' names or numbers.
        propose: returns the transform of target number i where "auto" is requested.

    >>> choose_transforms({"price": "positive"}, ["price", "lat"], lambda i: Real())
    (Positive(lower=0.0), Real())
    """
    return tuple(
        propose(place)
        if isinstance(given, str) and given == "auto"
        else choice.resolve("real" if given is None else given, "target_transform")
        for place, given in enumerate(requested_transforms(spec, labels))
    )


# Checks of parameters: each returns the plain value.

Check = Callable[[str, Any], Any]


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _whole(fix: str) -> Check:
    return lambda name, value: as_whole(name, value, 1, fix=fix)


def _fraction(name: str, value: Any) -> float:
    return as_fraction(name, value, fix="Pass 0 for none, or a fraction such as 0.1.")


def _floor(name: str, value: Any) -> float:
    expected = "a finite number from 0 was expected"
    fix = "Pass a scale of the standardised targets, such as 0.01, or leave it out."
    return as_real(name, value, expected, lambda number: 0 <= number < float("inf"), fix=fix)


def _n_components(name: str, value: Any) -> int | str:
    if isinstance(value, str) and value == "auto":
        return "auto"
    fix = 'Pass a number such as 5, "auto", or leave it out for a default by the number of rows.'
    return as_whole(name, value, 1, fix=fix)


def _setting(name: str, value: Any) -> Any:
    return getattr(Settings(**{name: value}), name)


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value; as in scikit-learn, a whole number is one too."""
    if not isinstance(value, Integral) and type(value).__name__ not in ("bool", "bool_"):
        raise refused(name, value, "True or False was expected", "Pass True or False.")
    return bool(value)


def _backbone(name: str, value: Any) -> Callable[[int], nn.Module]:
    if not callable(value) or isinstance(value, nn.Module):
        raise refused(
            name,
            value,
            "a function that makes a module from the number of columns was expected",
            "Pass the class or a function, not a module: every network gets its own.",
        )
    made: Callable[[int], nn.Module] = value
    return made


def _splitter(name: str, value: Any) -> Any:
    if isinstance(value, type) or not hasattr(value, "split") or not hasattr(value, "get_n_splits"):
        raise refused(
            name,
            value,
            "a splitter of sklearn.model_selection was expected",
            "Pass one, such as TimeSeriesSplit(), or leave it out for random rows.",
        )
    return value


def _callbacks(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not listed or not all(callable(one) for one in listed):
        raise refused(
            name,
            value,
            "a function of an Epoch, or a list of such functions, was expected",
            "Pass one, or leave it out.",
        )
    return listed


def _directory(name: str, value: Any) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        fix = "Pass one such as 'runs/first', or leave it out."
        raise refused(name, value, "the path of a directory was expected", fix)
    return path


def _device(name: str, value: Any) -> torch.device:
    fix = "Pass 'cpu', or 'cuda' on a machine with a supported graphics card."
    try:
        device = torch.device(value) if isinstance(value, str | torch.device) else None
        usable = device is not None and device.type != "meta"
        torch.empty(0, device=device if usable else None)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0][:200].rstrip(".")
        raise ArgumentError(
            name, got=f"is {value!r}", expected=f"torch cannot use it ({reason})", fix=fix
        ) from None
    if device is None or not usable:
        raise refused(name, value, "a device of torch that holds data was expected", fix)
    return device


CHECKS: Mapping[str, Check] = {
    "n_components": _optional(_n_components),
    "covariance": lambda name, value: as_choice(
        name, value, tuple(HEADS), fix='Choose one of these; "full" has every correlation.'
    ),
    "rank": _optional(_whole("Pass a number such as 5, or leave it out.")),
    "floor": _optional(_floor),
    "width": _whole("Pass a number such as 128."),
    "depth": _whole("Pass a number such as 2."),
    "dropout": _fraction,
    "n_members": _whole("Pass 1 for one network, or a number such as 5."),
    "calibration_fraction": _fraction,
    "backbone": _optional(_backbone),
    "splitter": _optional(_splitter),
    "settings": _optional(lambda _, value: Settings.given(value)),
    **dict.fromkeys(SETTING_NAMES, _optional(_setting)),
    "directory": _optional(_directory),
    "device": _optional(_device),
    "callbacks": _optional(_callbacks),
    "warm_start": check_flag,
    "verbose": check_flag,
}


def check_parameter(name: str, value: Any) -> Any:
    """Return the plain value of a parameter; refuse, by name, what no model can be fitted with."""
    return CHECKS[name](name, value)


def check_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of all parameters in `CHECKS`, also checked against one another."""
    checked = {name: check_parameter(name, values[name]) for name in CHECKS}
    if checked["rank"] is not None and checked["covariance"] != "low_rank":
        raise ArgumentError(
            "rank",
            got=f"is {checked['rank']} with covariance={checked['covariance']!r}",
            expected="only low-rank covariances have one",
            fix="Leave it out, or pass covariance='low_rank'.",
        )
    fraction, splitter = checked["validation_fraction"], checked["splitter"]
    if fraction and splitter is not None:
        raise ArgumentError(
            "validation_fraction",
            got=f"is {fraction} with a splitter",
            expected="the splitter decides which rows are held out",
            fix="Leave either out.",
        )
    combine_settings(checked, Settings())
    return checked


def combine_settings(parameters: Mapping[str, Any], default: Settings) -> Settings:
    """Return the settings of a fit: `settings`, or the default, and the plain parameters."""
    given: Settings | None = parameters["settings"]
    plain = {name: parameters[name] for name in SETTING_NAMES if parameters[name] is not None}
    for name, value in plain.items():
        if given is not None and getattr(given, name) != getattr(Settings(), name):
            raise ArgumentError(
                name,
                got=f"is {value!r} and, in settings, {getattr(given, name)!r}",
                expected="one of them was expected",
                fix=f"Leave {name} out of either.",
            )
    return replace(default if given is None else given, **plain)
