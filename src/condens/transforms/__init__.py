"""Transforms between constrained targets and the real line."""

from condens.transforms.base import Transform
from condens.transforms.choice import propose, resolve
from condens.transforms.kinds import (
    TRANSFORMS,
    Integer,
    Interval,
    Positive,
    Real,
    transform_from_dict,
)

__all__ = [
    "TRANSFORMS",
    "Integer",
    "Interval",
    "Positive",
    "Real",
    "Transform",
    "propose",
    "resolve",
    "transform_from_dict",
]
