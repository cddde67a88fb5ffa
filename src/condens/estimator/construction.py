"""Parameters of a model: checked by name, and turned into networks and settings."""

import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Generator, nn

from condens.data import Rows, TargetColumns
from condens.errors import (
    ArgumentError,
    DimensionError,
    ShapeError,
    TargetTransformWarning,
    TargetWarning,
)
from condens.files import as_path
from condens.nn import (
    HEADS,
    MLP,
    DensityNetwork,
    Ensemble,
    Head,
    MixtureNetwork,
    PiecewiseLinear,
    TableMLP,
)
from condens.nn.initialise import MAX_LINEAR_COLUMNS
from condens.nn.randomness import torch_seeded_by
from condens.persistence import network_to_dict
from condens.persistence.header import reason
from condens.scalars import as_choice, as_fraction, as_real, as_truth, as_whole, is_truth, refused
from condens.training import History, Settings, train
from condens.training.selection import Variant, choose_kind, train_alone, train_members
from condens.training.streaming import Stream
from condens.transforms import Real, Transform, choice
from condens.transforms.base import ON_A_BOUND

# Linear pieces of a number, where validation rows prefer them to none, and the dropout of networks
# with them, which learn rows by heart more easily, and of others where validation rows prefer it.
BINS, DROPOUT = 24, 0.1
# Twice as many components, up to so many, and dropout, up to so many rows, are taken where they are
# better by so many standard errors.
MAX_DEFAULT_COMPONENTS, MAX_DROPOUT_ROWS, VARIANT_ERRORS = 20, 40_000, 2.0
# Columns of numbers from which on doing without some is tried.
MIN_SELECTED_COLUMNS = 5
# Parameters that are also fields of `Settings`.
SETTING_NAMES = ("epochs", "batch_size", "learning_rate", "validation_fraction")


class Splitter(Protocol):
    """Decides which rows are held out, as the splitters of `sklearn.model_selection` do."""

    def get_n_splits(self) -> int:
        """Return the number of splits."""

    def split(self, X: Any, y: Any, groups: Any) -> Iterable[Any]:  # noqa: N803
        """Yield the rows to train on and the rows to test on, as arrays of their numbers."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The networks of a model, without their number of components.

    Args:
        n_columns: of the condition, codes of categories included.
        transforms: of the targets, one for each.
        categories: the number of codes of every column of codes; these come last.
        names: of the targets.
        covariance: see `condens.nn.HEADS`.
        rank: of low-rank covariances; None for the head's default.
        floor: smallest scale of the standardised targets; None for the head's default.
        width, depth: of the MLP.
        dropout: of the MLP; None for 0.1 with bins, else 0.
        n_bins: linear pieces in which it reads every number; "auto" for none until they are chosen.
        shortcut: whether it has a linear part; "auto" for none until that is chosen.
        select_columns: "auto" to try doing without columns that validation rows do not need.
        unused: columns of numbers that are not read.
        n_members: networks in an ensemble.
        backbone: makes a module from the number of columns, in place of the MLP.
    """

    n_columns: int
    transforms: Sequence[Transform]
    categories: Sequence[int] = ()
    names: tuple[str, ...] | None = None
    covariance: str = "full"
    rank: int | None = None
    floor: float | None = None
    width: int = 128
    depth: int = 3
    dropout: float | None = None
    n_bins: int | str = 0
    shortcut: bool | str = False
    select_columns: bool | str = False
    unused: tuple[int, ...] = ()
    n_members: int = 1
    backbone: Callable[[int], nn.Module] | None = None

    def network(self, n_components: int, *, generator: Generator) -> MixtureNetwork:
        """Return one untrained network.

        A user's backbone is made with torch's generator seeded by this one.
        """
        transforms = None if all(isinstance(t, Real) for t in self.transforms) else self.transforms
        if self.covariance == "low_rank" and transforms is not None:
            raise ArgumentError(
                "target_transform",
                got="goes with covariance='low_rank'",
                expected="only the other covariances have transformed targets",
                fix="Choose another covariance, or leave target_transform out.",
            )
        given = (("floor", self.floor), ("rank", self.rank))
        options: dict[str, Any] = {name: value for name, value in given if value is not None}
        if self.backbone is None:
            return MixtureNetwork.of(
                self.n_columns,
                len(self.transforms),
                n_components=n_components,
                covariance=self.covariance,
                width=self.width,
                depth=self.depth,
                dropout=self._dropout,
                bins=self.bins,
                shortcut=self.shortcut is True,
                categories=self.categories,
                names=self.names,
                transforms=transforms,
                unused=self.unused,
                generator=generator,
                **options,
            )
        with torch_seeded_by(generator):
            backbone = self.backbone(self.n_columns)
        head = HEADS[self.covariance](
            _n_features(backbone),
            len(self.transforms),
            n_components,
            generator=generator,
            **options,
        )
        return MixtureNetwork(
            backbone,
            head,
            condition_columns=self.n_columns,
            condition_codes=len(self.categories),
            names=self.names,
            transforms=transforms,
            unused=self.unused,
        )

    @property
    def bins(self) -> int:
        """The linear pieces of every number; none where the backbone is a user's."""
        return self.n_bins if isinstance(self.n_bins, int) and self.backbone is None else 0

    @property
    def compares_bins(self) -> bool:
        """Whether networks with bins are to be compared with those without.

        One network alone does without: to try both would double the cost.
        """
        choose = self.n_bins == "auto" and self.n_members > 1 and self.backbone is None
        return choose and self.n_columns > len(self.categories)

    @property
    def compares_shortcut(self) -> bool:
        """Whether networks with a linear part are to be compared with those without."""
        few = self.n_columns <= MAX_LINEAR_COLUMNS
        return self.shortcut == "auto" and self.backbone is None and few

    @property
    def compares_columns(self) -> bool:
        """Whether networks without some columns are to be compared with those that have all."""
        many = self.n_columns - len(self.categories) >= MIN_SELECTED_COLUMNS
        return self.select_columns == "auto" and self.n_members > 1 and many

    @property
    def _dropout(self) -> float:
        if self.dropout is not None:
            return self.dropout
        return DROPOUT if self.bins else 0.0

    def members(
        self,
        n_components: int,
        count: int,
        *,
        generator: Generator,
        device: torch.device | None = None,
        unused: tuple[int, ...] = (),
    ) -> list[MixtureNetwork]:
        """Return several untrained networks, which do without some columns."""
        kind = replace(self, unused=unused) if unused else self
        made = (kind.network(n_components, generator=generator) for _ in range(count))
        return [network.to(device) for network in made]

    def networks(self, n_components: int, *, generator: Generator) -> DensityNetwork:
        """Return an untrained network, or an ensemble of several members."""
        members = self.members(n_components, self.n_members, generator=generator)
        return members[0] if self.n_members == 1 else Ensemble(members)

    def train(
        self,
        n_components: int,
        rows: Rows,
        settings: Settings,
        *,
        generator: Generator,
        device: torch.device | None = None,
        more_components: bool = False,
        stream: Stream | None = None,
        stream_settings: Settings | None = None,
        **options: Any,
    ) -> tuple[DensityNetwork, History]:
        """Train networks of the kind that validation rows prefer; see `train_members`.

        With `more_components` twice as many of them are tried as long as that is clearly better.
        With a `stream` the rows are a sample of it: kinds are tried on the sample, and networks of
        the best are trained on the stream, with settings of its own.
        """
        first = Members(replace(self, n_bins=self.bins), n_components, generator, device)
        compared: dict[str, Any] = {
            "n_members": self.n_members,
            "variants": self.variants(doubled(n_components) if more_components else (), len(rows)),
            "select_columns": self.compares_columns and not settings.condition_noise,
        }
        if stream is not None:
            chosen = choose_kind(first, rows, settings, **compared, **options)
            if chosen.stopped and chosen.ensemble is not None and chosen.history is not None:
                return chosen.ensemble.eval(), chosen.history
            made = chosen.make(self.n_members)
            network = made[0] if self.n_members == 1 else Ensemble(made)
            own = {**options, "validation": None, "folds": None}
            if own["directory"] is not None:
                own["directory"] = Path(own["directory"]) / "members"
            return network, train(network, stream, stream_settings, warn=False, **own)
        if self.n_members == 1:
            other = first.with_shortcut() if self.compares_shortcut else None
            return train_alone(first, rows, settings, variant=other, **options)
        ensemble, history = train_members(first, rows, settings, **compared, **options)
        return ensemble.eval(), history

    def variants(self, counts: Sequence[int], n_rows: int) -> list[Variant]:
        """Return what is tried, in this order; counts of components from the first one on.

        One network alone has as many components as it was given, and no dropout.
        """
        counts = counts if self.n_members > 1 else ()
        few = self.n_members > 1 and n_rows < MAX_DROPOUT_ROWS
        compares_dropout = self.dropout is None and self.backbone is None and few
        return [
            *([Variant(Members.with_bins)] if self.compares_bins else ()),
            *([Variant(Members.with_shortcut)] if self.compares_shortcut else ()),
            *(
                Variant(partial(Members.with_components, fewer=fewer, more=more), VARIANT_ERRORS)
                for fewer, more in pairwise(counts)
            ),
            *([Variant(Members.with_dropout, VARIANT_ERRORS)] if compares_dropout else ()),
        ]

    def check_unchanged(self, fitted: DensityNetwork, n_components: int | str | None) -> None:
        """Refuse to go on training a network that the parameters no longer describe."""
        count = n_components if isinstance(n_components, int) else n_components_of(fitted)
        bins = n_bins_of(fitted) if self.n_bins == "auto" else self.bins
        shortcut = has_shortcut(fitted) if self.shortcut == "auto" else self.shortcut
        dropout = dropout_of(fitted) if self.dropout is None else self.dropout
        asked = replace(self, n_bins=bins, shortcut=shortcut, dropout=dropout, unused=fitted.unused)
        wanted = asked.networks(count, generator=Generator()).double()
        known = copy.deepcopy(fitted)
        known.drop_adjustment()
        ours, theirs = (set(_leaves(network_to_dict(network))) for network in (wanted, known))
        if ours != theirs:
            raise ArgumentError(
                "the parameters",
                got=f"({min(ours ^ theirs, key=str)[0]}) changed since the fit",
                expected="training continues with the fitted network",
                fix="Set them back, or start again with warm_start=False.",
            )


@dataclass(frozen=True)
class Members:
    """Makes untrained members of one kind, as many as are asked for.

    Args:
        kind: of the networks.
        n_components: of each.
        generator: draws their weights.
        device: where they are to be.
    """

    kind: Architecture
    n_components: int
    generator: Generator
    device: torch.device | None

    def __call__(self, count: int, unused: tuple[int, ...] = ()) -> list[MixtureNetwork]:
        """Return networks, which do without some columns."""
        return self.kind.members(
            self.n_components, count, generator=self.generator, device=self.device, unused=unused
        )

    def with_bins(self) -> "Members":
        """Return a kind that reads numbers in linear pieces as well."""
        return replace(self, kind=replace(self.kind, n_bins=BINS))

    def with_shortcut(self) -> "Members":
        """Return a kind with a linear part."""
        return replace(self, kind=replace(self.kind, shortcut=True))

    def with_components(self, *, fewer: int, more: int) -> "Members | None":
        """Return a kind with more components, if it has these few."""
        return replace(self, n_components=more) if self.n_components == fewer else None

    def with_dropout(self) -> "Members | None":
        """Return a kind with dropout, unless it has some."""
        if self.kind.bins:
            return None
        return replace(self, kind=replace(self.kind, dropout=DROPOUT))


def _n_features(backbone: object) -> int:
    """Return the number of features of a user's backbone, which it has as attribute."""
    features = getattr(backbone, "features", None)
    if not isinstance(backbone, nn.Module) or not isinstance(features, int):
        raise ArgumentError(
            "backbone",
            got=f"made a {type(backbone).__name__} whose features are {features!r}",
            expected="a torch.nn.Module with their number as attribute was expected",
            fix="Set self.features in it.",
        )
    return features


def n_components_of(network: DensityNetwork) -> int:
    """Return the number of components of a network, or of each member of an ensemble."""
    return next(m.n_components for m in network.modules() if isinstance(m, Head))


def n_bins_of(network: DensityNetwork) -> int:
    """Return the linear pieces in which a network reads every number."""
    found = (m.bins for m in network.modules() if isinstance(m, PiecewiseLinear))
    return next(found, 0)


def doubled(n_components: int) -> list[int]:
    """Return numbers of components to try: twice as many each time, up to a limit.

    >>> doubled(3), doubled(20)
    ([3, 6, 12], [20])
    """
    found = [n_components]
    while 2 * found[-1] <= MAX_DEFAULT_COMPONENTS:
        found.append(2 * found[-1])
    return found


def dropout_of(network: DensityNetwork) -> float:
    """Return the dropout of a network, or of each member of an ensemble."""
    return next((m.p for m in network.modules() if isinstance(m, nn.Dropout)), 0.0)


def has_shortcut(network: DensityNetwork) -> bool:
    """Tell whether a network has a linear part."""
    return any(m.shortcut > 0 for m in network.modules() if isinstance(m, MLP | TableMLP))


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a document, each with its path."""
    if isinstance(value, Mapping | list):
        for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(part, f"{place}.{name}".lstrip("."))
    else:
        yield place, value


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
    spec: choice.TargetTransform, labels: Sequence[str | int], propose: Callable[[int], Transform]
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


def announced_transforms(
    spec: choice.TargetTransform, target: TargetColumns, name: str = "y"
) -> tuple[Transform, ...]:
    """Return the transform of each target; warn of those chosen, and of those that are missing.

    Args:
        spec: `target_transform`.
        target: the columns.
        name: of the argument that they came in.
    """
    columns = target.values.unbind(1)
    labels = target.names or range(len(columns))
    transforms = choose_transforms(spec, labels, lambda place: choice.propose(columns[place]))
    requested = requested_transforms(spec, labels)
    automatic = [isinstance(given, str) and given == "auto" for given in requested]
    chosen = [
        f"{label!r}: {transform}"
        for label, auto, transform in zip(labels, automatic, transforms, strict=True)
        if auto
    ]
    if chosen:
        warnings.warn(
            f"target_transform: 'auto' chose {{{', '.join(chosen)}}}. Pass these to be sure of "
            "them.",
            TargetTransformWarning,
            stacklevel=caller_level(),
        )
    skewed = [
        repr(label)
        for label, given, column in zip(labels, requested, columns, strict=True)
        if given is None and choice.spans_decades(column)
    ]
    if skewed:
        warnings.warn(
            f"{name} is positive in column(s) {', '.join(skewed)} and spans orders of magnitude, "
            "which a mixture of a few Gaussians fits badly. Pass target_transform='positive', in "
            "{name: …} for some columns, or 'real' to leave it as it is.",
            TargetWarning,
            stacklevel=caller_level(),
        )
    crowded = []
    for label, given, auto, transform, column in zip(
        labels, requested, automatic, transforms, columns, strict=True
    ):
        if (given is None or auto) and not transform.discrete:
            found = {**(choice.on_bounds(column) if auto else {}), **choice.spikes(column)}
            at = " and ".join(f"{share:.2%} on {end:g}" for end, share in found.items())
            crowded += [f"{label!r} ({at})"] if found else []
    if crowded:
        warnings.warn(
            f"{name} has many rows exactly at the end of the range in column(s) "
            f"{', '.join(crowded)}. {ON_A_BOUND} Pass 'real' to leave it as it is.",
            TargetWarning,
            stacklevel=caller_level(),
        )
    return transforms


def caller_level() -> int:
    """Return the `stacklevel` of a warning's first caller outside the package."""
    level, frame = 1, sys._getframe(1)
    # Code that exec runs may have no __name__.
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("condens."):
        level, frame = level + 1, frame.f_back
    return level


# Checks of parameters: each returns the plain value.

Check = Callable[[str, Any], Any]


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _where(fits: Callable[[Any], object], expected: str, fix: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if not fits(value):
            raise refused(name, value, f"{expected} was expected", fix)
        return value

    return check


def _n_components(name: str, value: Any) -> int | str:
    fix = 'Pass a number such as 5, "auto", or leave it out for a default by the number of rows.'
    return (
        value if isinstance(value, str) and value == "auto" else as_whole(name, value, 1, fix=fix)
    )


def _n_bins(name: str, value: Any) -> int | str:
    fix = 'Pass 0 for none, a number such as 24, or "auto" to let validation rows decide.'
    return (
        value if isinstance(value, str) and value == "auto" else as_whole(name, value, 0, fix=fix)
    )


def _shortcut(name: str, value: Any) -> bool | str:
    if isinstance(value, str) and value == "auto":
        return value
    return as_truth(name, value, fix='Pass True, False, or "auto" to let validation rows decide.')


def _select_columns(name: str, value: Any) -> bool | str:
    if is_truth(value) and not value:
        return False
    if isinstance(value, str) and value == "auto":
        return value
    fix = "Pass False for all columns, or leave those out of X that are not to be read."
    raise refused(name, value, '"auto" or False was expected', fix)


def _device(name: str, value: Any) -> torch.device:
    try:
        torch.empty(1, device=torch.device(value)).cpu()
    except Exception as error:  # torch raises what its back ends raise
        raise ArgumentError(
            name,
            got=f"is {value!r}",
            expected=f"torch cannot train there ({reason(error).splitlines()[0].rstrip('.')})",
            fix="Pass 'cpu', or 'cuda' on a machine with a supported graphics card.",
        ) from None
    return torch.device(value)


def _directory(name: str, value: Any) -> Any:
    fix = "Pass a path such as 'runs/first', or leave it out."
    as_path(name, value, fix=fix)
    return _where(os.fspath, "the path of a directory", fix)(name, value)


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value, which a whole number is in scikit-learn."""
    flag = bool(value) if isinstance(value, Integral) else value
    return as_truth(name, flag, fix="Pass True or False.")


_POSITIVE = partial(as_whole, least=1)
_FRACTION = partial(as_fraction, fix="Pass 0 for none, or a fraction such as 0.1.")
CHECKS: Mapping[str, Check] = {
    "n_components": _optional(_n_components),
    "covariance": partial(
        as_choice, choices=tuple(HEADS), fix='Choose one of these; "full" has every correlation.'
    ),
    "rank": _optional(partial(_POSITIVE, fix="Pass a number such as 5, or leave it out.")),
    "floor": _optional(
        partial(as_real, fix="Pass a scale of the standardised targets, such as 0.01.")
    ),
    "width": partial(_POSITIVE, fix="Pass a number such as 128."),
    "depth": partial(_POSITIVE, fix="Pass a number such as 2."),
    "dropout": _optional(_FRACTION),
    "n_bins": _n_bins,
    "shortcut": _shortcut,
    "select_columns": _select_columns,
    "n_members": partial(_POSITIVE, fix="Pass 1 for one network, or a number such as 5."),
    "calibration_fraction": _FRACTION,
    "backbone": _optional(
        _where(
            lambda value: callable(value) and not isinstance(value, nn.Module),
            "a function that makes a module from the number of columns",
            "Pass the class or a function, not a module: every network gets its own.",
        )
    ),
    "splitter": _optional(
        _where(
            lambda value: hasattr(value, "get_n_splits") and not isinstance(value, type),
            "a splitter of sklearn.model_selection",
            "Pass one, such as TimeSeriesSplit(), or leave it out for random rows.",
        )
    ),
    "settings": _optional(lambda _, value: Settings.given(value)),
    **dict.fromkeys(
        SETTING_NAMES, _optional(lambda name, value: getattr(Settings(**{name: value}), name))
    ),
    "directory": _optional(_directory),
    "device": _optional(_device),
    "store_summary": check_flag,
    "warm_start": check_flag,
    "verbose": check_flag,
}


def check_parameter(name: str, value: Any) -> Any:
    """Return the plain value of a parameter; refuse, by name, what no model can be fitted with."""
    return CHECKS[name](name, value)


def check_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with plain values, also checked against one another."""
    checked = {**values, **{name: check_parameter(name, values[name]) for name in CHECKS}}
    if checked["rank"] is not None and checked["covariance"] != "low_rank":
        raise ArgumentError(
            "rank",
            got=f"is {checked['rank']} with covariance={checked['covariance']!r}",
            expected="only low-rank covariances have one",
            fix="Leave it out, or pass covariance='low_rank'.",
        )
    if checked["n_bins"] not in (0, "auto") and checked["backbone"] is not None:
        raise ArgumentError(
            "n_bins",
            got=f"is {checked['n_bins']} with a backbone",
            expected="a backbone of yours reads the columns as they are",
            fix="Leave it out, or put a condens.nn.PiecewiseLinear into the backbone.",
        )
    if checked["shortcut"] is True and checked["backbone"] is not None:
        raise ArgumentError(
            "shortcut",
            got="is True with a backbone",
            expected="a backbone of yours has the features that it returns",
            fix="Leave it out, or let the backbone return the columns among its features.",
        )
    if checked["validation_fraction"] and checked["splitter"] is not None:
        raise ArgumentError(
            "validation_fraction",
            got=f"is {checked['validation_fraction']} with a splitter",
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
