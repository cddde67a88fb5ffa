"""Search spaces: which parameters a study varies, and between which values."""

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from condens.errors import ArgumentError
from condens.estimator.construction import check_parameter
from condens.estimator.document import PLAIN_PARAMETERS
from condens.files import as_path
from condens.scalars import refused
from condens.training import Settings, default_components, default_settings
from condens.training.batches import batch_size

if TYPE_CHECKING:
    from optuna import Trial

Value = bool | int | float | str | None

# Of `Settings`: a study holds out its own rows, has its own seed, and starts every network anew.
TRAINING_NAMES = tuple(
    field.name
    for field in fields(Settings)
    if field.name not in ("seed", "start", "validation_fraction")
)
# Of `MDNRegressor`: the others belong to a machine, or to the whole of a study.
MODEL_NAMES = tuple(
    name
    for name in PLAIN_PARAMETERS
    if name not in TRAINING_NAMES
    and name
    not in (
        *("calibration_fraction", "device", "n_members", "random_state", "store_summary"),
        *("validation_fraction", "verbose", "warm_start"),
    )
)
_EXPECTED = "a value, a list of values, or a range with low and high was expected"
_FIX = "Write width = [64, 128], or learning_rate = {low = 0.001, high = 0.01, log = true}."


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones if both are.

    Args:
        low, high: the ends.
        log: search evenly in the logarithm.
    """

    low: float
    high: float
    log: bool = False


Dimension = Range | Sequence[Value] | Value


class Space:
    """Parameters by name: those that are searched, and those that are fixed.

    Args:
        given: of each parameter of `MDNRegressor` or `Settings` a `Range`, a list of choices, or
            one value for every trial.

    >>> space = Space({"depth": Range(1, 3), "width": [64, 128], "clip": 3})
    >>> space.searched, space.fixed
    ({'depth': Range(low=1, high=3, log=False), 'width': (64, 128)}, {'clip': 3.0})
    """

    def __init__(self, given: Mapping[str, Dimension]) -> None:
        if not isinstance(given, Mapping):
            raise refused("space", given, "a mapping from names to values was expected", _FIX)
        self.searched: dict[str, Range | tuple[Value, ...]] = {}
        self.fixed: dict[str, Value] = {}
        for name, dimension in given.items():
            _check_name(name)
            if isinstance(dimension, Range):
                self.searched[name] = _check_range(name, dimension)
            elif isinstance(dimension, Sequence) and not isinstance(dimension, str | bytes):
                self.searched[name] = _check_choices(name, dimension)
            else:
                self.fixed[name] = _check_value(name, dimension)
        if not self.searched:
            raise ArgumentError(
                "space",
                got="has nothing to search",
                expected="a range or a list was expected",
                fix=_FIX,
            )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the space of a TOML file with tables `model` and `training`."""
        place = as_path("space", path)
        try:
            document = tomllib.loads(place.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ArgumentError(
                str(place),
                got=f"cannot be read ({error})",
                expected="TOML was expected",
                fix="Correct that line.",
            ) from None
        found: dict[str, Dimension] = {}
        for part, known in (("model", MODEL_NAMES), ("training", TRAINING_NAMES)):
            entries = document.pop(part, {})
            if not isinstance(entries, dict):
                raise refused(f"{place}: {part}", entries, "a table was expected", _FIX)
            for name, value in entries.items():
                if name not in known:
                    raise ArgumentError(
                        f"{place}: [{part}]",
                        got=f"has {name!r}",
                        expected=f"{', '.join(sorted(known))} were expected",
                        fix="Correct it, or leave it out.",
                    )
                found[name] = _read_range(name, value) if isinstance(value, dict) else value
        if document:
            raise ArgumentError(
                str(place),
                got=f"has {next(iter(document))!r}",
                expected="the tables [model] and [training] were expected",
                fix=_FIX,
            )
        return cls(found)

    def suggest(self, trial: "Trial", name: str) -> Value:
        """Return a trial's value of a parameter that is searched."""
        dimension = self.searched[name]
        if not isinstance(dimension, Range):
            value: Value = trial.suggest_categorical(name, dimension)
            return value
        low, high, log = dimension.low, dimension.high, dimension.log
        if isinstance(low, int) and isinstance(high, int):
            return trial.suggest_int(name, low, high, log=log)
        return trial.suggest_float(name, low, high, log=log)

    def holds(self, name: str, value: Value) -> bool:
        """Tell whether a value lies in the space."""
        dimension = self.searched[name]
        if not isinstance(dimension, Range):
            return value in dimension
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and dimension.low <= value <= dimension.high
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain values, for JSON."""
        searched = {
            name: asdict(dimension) if isinstance(dimension, Range) else list(dimension)
            for name, dimension in self.searched.items()
        }
        return {**searched, **self.fixed}


def default_space(n_rows: int) -> dict[str, Dimension]:
    """Return the space that is searched by default, for a number of training rows."""
    usual = batch_size(Settings(), n_rows)
    return {
        "n_components": Range(1, 30, log=True),
        "width": (32, 64, 128, 256),
        "depth": Range(1, 5),
        "dropout": Range(0.0, 0.3),
        "n_bins": (0, 24),
        "shortcut": (False, True),
        "learning_rate": Range(5e-4, 2e-2, log=True),
        "weight_decay": Range(1e-3, 0.3, log=True),
        "batch_size": (usual // 2, usual, 2 * usual),
        "condition_noise": Range(0.0, 0.1),
    }


def default_values(n_rows: int) -> dict[str, Value]:
    """Return what one network has by default, as numbers, for a number of training rows.

    "auto" means no bins for one network alone, and nearly always no shortcut.
    """
    settings = default_settings(n_rows)
    plain = {name: getattr(settings, name) for name in TRAINING_NAMES}
    return {
        **plain,
        "n_components": default_components(n_rows),
        "covariance": "full",
        "width": 128,
        "depth": 3,
        "dropout": 0.0,
        "n_bins": 0,
        "shortcut": False,
        "batch_size": batch_size(Settings(), n_rows),
    }


def to_toml(values: Mapping[str, Value]) -> str:
    """Return parameters as `condens fit --settings` reads them.

    >>> print(to_toml({"width": 64, "clip": 3.0}))
    [model]
    width = 64
    <BLANKLINE>
    [training]
    clip = 3.0
    """
    parts = []
    for part, names in (
        ("model", (*MODEL_NAMES, "n_members")),
        ("training", (*TRAINING_NAMES, "validation_fraction")),
    ):
        lines = [
            f"{name} = {_toml(values[name])}"
            for name in names
            if name in values and values[name] is not None
        ]
        if lines:
            parts.append("\n".join([f"[{part}]", *lines]))
    return "\n\n".join(parts)


def _toml(value: Value) -> str:
    if isinstance(value, str):
        return f'"{value}"'  # a word of the parameters, none of which needs an escape
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _check_name(name: object) -> None:
    if name in ("n_members", "validation_fraction", "random_state"):
        raise ArgumentError(
            "space",
            got=f"has {name!r}",
            expected="every trial is one network, on the same rows and with the same seed",
            fix=f"Leave it out. {name} is an argument of the search.",
        )
    if name not in MODEL_NAMES + TRAINING_NAMES:
        raise ArgumentError(
            "space",
            got=f"has {name!r}",
            expected=f"{', '.join(sorted(MODEL_NAMES + TRAINING_NAMES))} were expected",
            fix="Correct it, or leave it out.",
        )


def _check_value(name: str, value: Any) -> Value:
    """Return the plain value of a parameter, or refuse it by name."""
    if value is not None and not isinstance(value, bool | int | float | str):
        raise refused(name, value, _EXPECTED, _FIX)
    if name in TRAINING_NAMES:
        given: dict[str, Any] = {name: value}
        plain: Value = getattr(Settings(**given), name)
        return plain
    checked: Value = check_parameter(name, value)
    return checked


def _check_range(name: str, given: Range) -> Range:
    for end in (given.low, given.high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise refused(name, end, "the end of a range is a number", _FIX)
    ends = [_check_value(name, end) for end in (given.low, given.high)]
    low, high = (end for end in ends if isinstance(end, int | float))
    if not low < high:
        raise refused(name, (given.low, given.high), "a range has low below high", _FIX)
    if not isinstance(given.log, bool) or (given.log and low <= 0):
        raise refused(name, given, "a range in the logarithm is above 0", _FIX)
    return Range(low, high, given.log)


def _check_choices(name: str, given: Sequence[Any]) -> tuple[Value, ...]:
    choices = tuple(_check_value(name, value) for value in given)
    if not choices or any(value in choices[:place] for place, value in enumerate(choices)):
        raise refused(name, list(given), "a list of different values was expected", _FIX)
    return choices


def _read_range(name: str, value: Mapping[str, Any]) -> Range:
    if not {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        raise refused(name, dict(value), _EXPECTED, _FIX)
    return Range(**value)
