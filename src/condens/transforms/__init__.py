"""Constrained targets: transforms between their values and the real line."""

from condens.transforms.base import TRANSFORMS, Transform
from condens.transforms.choice import propose, resolve
from condens.transforms.kinds import Integer, Interval, Positive, Real

__all__ = [
    "TRANSFORMS",
    "Integer",
    "Interval",
    "Positive",
    "Real",
    "Transform",
    "propose",
    "resolve",
]
