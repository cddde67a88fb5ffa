"""How to train."""

from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

from condens.errors import ArgumentError, message

Schedule = Literal["cosine", "plateau", "constant"]
Bound = Literal["weighted", "uniform", "printed"]

_WHOLE = ("epochs", "warmup_steps", "patience", "bound_epochs", "seed")
_REAL = ("learning_rate", "weight_decay", "clip", "average", "validation_share", "entropy")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything `train` can be told; the defaults are meant to be left alone.

    Args:
        epochs: passes over the data, at most.
        batch_size: rows a step; the last batch of an epoch may be shorter. "rule" is the
            largest power of two up to a hundredth of the rows, but from 32 to 256.
        learning_rate: of AdamW, after `warmup_steps`.
        schedule: how the rate falls: `cosine` to zero over all epochs, `plateau` (halved when
            the validation loss stalls), or `constant`.
        warmup_steps: over which the rate rises from zero.
        weight_decay: of AdamW, on matrices only.
        clip: largest norm of the gradient.
        condition_noise, target_noise: standard deviation of the noise added to each batch,
            in units of the standardised columns; "rule" is 1.06 · n^(−1/(4+m)) for m
            columns of condition and target together.
        average: decay of the moving average of the weights, a step; 0 turns it off. The
            average is what is validated, kept and returned.
        validation_share: of the rows, held out for early stopping.
        patience: epochs without a better validation loss before training ends.
        bound: a Jensen bound to warm up on, for `bound_epochs`; `printed` is the report's
            form, for comparison.
        entropy: weight of a term that rewards even mixture weights.
        start: `data` places the components on the targets first, `zero` is the report's, and
            `keep` goes on with a network as it is, its scales included.
        autocast: run the backbone in bfloat16.
        seed: of everything random. The same seed and environment give the same bytes.
    """

    epochs: int = 100
    batch_size: int | Literal["rule"] = "rule"
    learning_rate: float = 3e-3
    schedule: Schedule = "cosine"
    warmup_steps: int = 100
    weight_decay: float = 1e-4
    clip: float = 5.0
    condition_noise: float | Literal["rule"] = 0.0
    target_noise: float | Literal["rule"] = 0.0
    average: float = 0.99
    validation_share: float = 0.1
    patience: int = 15
    bound: Bound | None = None
    bound_epochs: int = 2
    entropy: float = 0.0
    start: Literal["data", "zero", "keep"] = "data"
    autocast: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for kinds, number, expected in (
            (_WHOLE, Integral, "a whole number was expected"),
            (_REAL, Real, "a number was expected"),
        ):
            for name in kinds:
                self._need(name, isinstance(getattr(self, name), number), expected)
                # numpy's numbers become Python's, which JSON knows.
                plain = int if number is Integral else float
                object.__setattr__(self, name, plain(getattr(self, name)))
        for name in ("epochs", "patience"):
            self._need(name, getattr(self, name) >= 1, "at least 1 was expected")
        size = self.batch_size
        fits = size == "rule" or (isinstance(size, Integral) and int(size) >= 1)
        self._need("batch_size", fits, '1 or more, or "rule", was expected')
        object.__setattr__(self, "batch_size", size if size == "rule" else int(size))
        for name in ("learning_rate", "clip"):
            self._need(name, getattr(self, name) > 0, "a number above 0 was expected")
        for name in ("warmup_steps", "weight_decay", "bound_epochs", "entropy"):
            self._need(name, getattr(self, name) >= 0, "0 or more was expected")
        for name in ("average", "validation_share"):
            self._need(
                name, 0 <= getattr(self, name) < 1, "a number from 0 to below 1 was expected"
            )
        for name in ("condition_noise", "target_noise"):
            value = getattr(self, name)
            fits = value == "rule" or (isinstance(value, int | float) and value >= 0)
            self._need(name, fits, '0 or more, or "rule", was expected')
        for name, choices in (
            ("schedule", ("cosine", "plateau", "constant")),
            ("bound", (None, "weighted", "uniform", "printed")),
            ("start", ("data", "zero", "keep")),
        ):
            self._need(name, getattr(self, name) in choices, f"one of {choices} was expected")

    def _need(self, name: str, fits: bool, expected: str) -> None:
        if not fits:
            came = f"is {getattr(self, name)!r}"
            raise ArgumentError(message(name, came, expected, "Change it, or leave it out."))

    def __repr__(self) -> str:
        """Tell what differs from the defaults.

        >>> Settings(epochs=5, clip=1)
        Settings(epochs=5, clip=1.0)
        """
        own = ((field, getattr(self, field.name)) for field in fields(self))
        told = (f"{field.name}={value!r}" for field, value in own if value != field.default)
        return f"{type(self).__name__}({', '.join(told)})"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """Return settings from `as_dict`; what is unknown is refused by name."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                expected = f"the settings are {', '.join(sorted(known))}"
                raise ArgumentError(message(name, "is no setting", expected, "Check its name."))
        return cls(**values)
