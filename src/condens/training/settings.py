"""The settings of a training run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal

from condens.errors import ArgumentError
from condens.scalars import (
    as_choice,
    as_fraction,
    as_real,
    as_truth,
    as_whole,
    decode_float,
    encode_floats,
    refused,
)

Schedule = Literal["cosine", "plateau", "constant"]
Bound = Literal["weighted", "uniform", "printed"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train; the defaults suit most data.

    Args:
        epochs: passes over the data, at most.
        batch_size: rows a step; the last batch of an epoch may be shorter. "rule" is the
            largest power of two up to a fiftieth of the rows, but from 32 to 512.
        accumulation: parts in which a step's rows are computed one after the other, for batches
            that do not fit into memory.
        learning_rate: of AdamW, after `warmup_steps`.
        schedule: how the rate falls: `cosine` to zero over all epochs, `plateau` (halved when
            the validation loss of every member stalls), or `constant`.
        warmup_steps: over which the rate rises from zero.
        weight_decay: of AdamW, on matrices only.
        clip: largest norm of the gradient; infinity for any.
        condition_noise, target_noise: standard deviation of the noise added to each batch,
            in units of the standardised columns; "rule" is 1.06 · n^(−1/(4+m)) for m
            columns of condition and target together.
        average: decay of the moving average of the weights, a step; 0 turns it off. The
            average is what is validated, kept and returned.
        validation_fraction: of the rows, held out for early stopping; of each member of an ensemble
            another one.
        patience: epochs without a better validation loss before training ends; of an ensemble,
            before it ends for a member.
        bound: a Jensen bound to warm up on, for `bound_epochs`; `printed` is the report's
            form, for comparison.
        entropy: weight of a term that rewards even mixture weights.
        start: `data` places the components on the targets first, `zero` is the report's, and
            `keep` goes on with a network as it is, its scales included.
        autocast: run the backbone in bfloat16.
        trim: part of the weight that the lightest components of a condition have together: these
            are left out after training, 0 for none. They were fitted to next to no rows.
        limit: the largest deviation of a component, in units of how far training targets are from
            their mean at most, infinity for none: wider ones are scaled down after training. They
            have next to no weight, for nothing else holds their covariance.
        spread: by which the deviations of all components are multiplied after training: a number,
            1 for none, or "fit", on rows held out for it; see `condens.training.adjust`.
        tail: weight of a wide density of all training targets beside the network's: a number, 0
            for none, or "fit", at least 0.001. Both are set where there are rows for `adjust`.
        seed: of everything random, a whole number of 64 bits. The same seed and environment give
            the same bytes.
    """

    epochs: int = 100
    batch_size: int | Literal["rule"] = "rule"
    accumulation: int = 1
    learning_rate: float = 3e-3
    schedule: Schedule = "cosine"
    warmup_steps: int = 100
    weight_decay: float = 0.03
    clip: float = 5.0
    condition_noise: float | Literal["rule"] = 0.0
    target_noise: float | Literal["rule"] = 0.0
    average: float = 0.99
    validation_fraction: float = 0.1
    patience: int = 15
    bound: Bound | None = None
    bound_epochs: int = 2
    entropy: float = 0.0
    start: Literal["data", "zero", "keep"] = "data"
    autocast: bool = False
    trim: float = 0.002
    limit: float = 1.0
    spread: float | Literal["fit"] = "fit"
    tail: float | Literal["fit"] = "fit"
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            fix = f"Leave it out for the default, {field.default!r}."
            plain = _CHECKS[field.name](field.name, getattr(self, field.name), fix=fix)
            object.__setattr__(self, field.name, plain)

    def __repr__(self) -> str:
        """Name what differs from the defaults.

        >>> Settings(epochs=5, clip=1)
        Settings(epochs=5, clip=1.0)
        """
        changes = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(changes)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for JSON, in which infinity is a word.

        >>> Settings(clip=float("inf")).to_dict()["clip"]
        'inf'
        """
        return dict(encode_floats(asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """Return the settings of what `to_dict` returned; unknown names are refused."""
        if not isinstance(values, Mapping):
            raise ArgumentError(
                "settings",
                got=f"is {type(values).__name__}",
                expected="what to_dict returns was expected",
                fix="Pass a dictionary.",
            )
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ArgumentError(
                    name,
                    got="is no setting",
                    expected=f"the settings are {', '.join(sorted(known))}",
                    fix="Check its name.",
                )
        return cls(**{name: decode_float(value) for name, value in values.items()})

    @classmethod
    def given(cls, settings: object) -> "Settings":
        """Return the settings that a user passed, the default ones for None.

        >>> Settings.given({"epochs": 5})
        Traceback (most recent call last):
        condens.errors.ArgumentError: settings is a dict, but condens.training.Settings was \
expected. Pass Settings(epochs=5).
        """
        if settings is None or isinstance(settings, cls):
            return settings or cls()
        fix = "Pass Settings(epochs=…), or leave it out."
        if isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings):
            arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            fix = f"Pass Settings({arguments if len(arguments) < 200 else '…'})."
        elif settings is cls:
            fix = "Call it: Settings()."
        raise ArgumentError(
            "settings",
            got="is the class" if settings is cls else f"is a {type(settings).__name__}",
            expected="condens.training.Settings was expected",
            fix=fix,
        )


# Of a name, a value and, as `fix`, what to do where it is wrong; returns the plain value.
Check = Callable[..., Any]


def _or_word(
    name: str, value: Any, *, word: str = "rule", check: Check, expected: str, fix: str
) -> Any:
    if isinstance(value, str) and value == word:
        return word
    try:
        return check(name, value, fix=fix)
    except ArgumentError:
        raise refused(name, value, f'{expected}, or "{word}", was expected', fix) from None


_FROM_0, _FROM_1 = partial(as_whole, least=0), partial(as_whole, least=1)
_POSITIVE = partial(
    as_real, expected="a finite number above 0 was expected", fits=lambda x: 0 < x < math.inf
)
_NOT_NEGATIVE = partial(
    as_real, expected="a finite number from 0 was expected", fits=lambda x: 0 <= x < math.inf
)
_NOISE = partial(_or_word, check=_NOT_NEGATIVE, expected="a finite number from 0")

_CHECKS: Mapping[str, Check] = {
    "epochs": _FROM_1,
    "batch_size": partial(_or_word, check=_FROM_1, expected="a whole number from 1"),
    "accumulation": _FROM_1,
    "learning_rate": _POSITIVE,
    "schedule": partial(as_choice, choices=("cosine", "plateau", "constant")),
    "warmup_steps": _FROM_0,
    "weight_decay": _NOT_NEGATIVE,
    "clip": partial(as_real, expected="a number above 0 was expected", fits=lambda x: x > 0),
    "condition_noise": _NOISE,
    "target_noise": _NOISE,
    "average": as_fraction,
    "validation_fraction": as_fraction,
    "patience": _FROM_1,
    "bound": partial(as_choice, choices=(None, "weighted", "uniform", "printed")),
    "bound_epochs": _FROM_0,
    "entropy": _NOT_NEGATIVE,
    "start": partial(as_choice, choices=("data", "zero", "keep")),
    "autocast": as_truth,
    "trim": as_fraction,
    "limit": partial(as_real, expected="a number from 1e-6 was expected", fits=lambda x: x >= 1e-6),
    "spread": partial(_or_word, word="fit", check=_POSITIVE, expected="a finite number above 0"),
    "tail": partial(_or_word, word="fit", check=as_fraction, expected="a number from 0 to below 1"),
    # The range of torch's generators.
    "seed": partial(as_whole, least=-(2**63), most=2**64 - 1),
}
