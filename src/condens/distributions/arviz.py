"""Draws as ArviZ's trees of labelled arrays, one variable for each name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from condens.errors import ArgumentError

if TYPE_CHECKING:
    from xarray import DataTree

_SAMPLE_AXES = ("chain", "draw")


def as_group(name: str, group: str) -> str:
    """Return the name of a group: a word that is no path.

    >>> as_group("group", "a/b")
    Traceback (most recent call last):
    condens.errors.ArgumentError: group is 'a/b', but a word without slashes was expected. Pass \
"posterior", for instance.
    """
    if not isinstance(group, str) or not group.strip(".") or "/" in group:
        raise ArgumentError(
            name,
            got=f"is {group!r}",
            expected="a word without slashes was expected",
            fix='Pass "posterior", for instance.',
        )
    return group


def to_tree(
    groups: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    attributes: Mapping[str, Any] | None = None,
) -> "DataTree":
    """Return arrays [chains, draws, ..., D] of each group as variables [chains, draws, ...].

    A variable has the name of its column, kept in `long_name` too: xarray takes no slashes, and
    no name of an axis.
    """
    try:
        from arviz_base import from_dict
    except ModuleNotFoundError as error:
        if error.name != "arviz_base":
            raise
        raise ImportError(
            "to_arviz needs arviz-base. Install it: pip install 'condens[arviz]'."
        ) from error
    first = next(iter(groups.values()))
    axes = _row_axes(first.ndim - 3)
    labels = _labels(names, {*_SAMPLE_AXES, *axes, *groups})
    tree = from_dict(
        {
            group: {label: array[..., place] for place, label in enumerate(labels)}
            for group, array in groups.items()
        },
        dims=dict.fromkeys(labels, axes),
        attrs={"/": {"inference_library": "condens", **(attributes or {})}},
    )
    for group in groups:
        for label, name in zip(labels, names, strict=True):
            tree[group][label].attrs["long_name"] = name
    return tree


def _row_axes(count: int) -> list[str]:
    return ["row"] if count == 1 else [f"row_{axis}" for axis in range(count)]


def _labels(names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """Return a distinct label for each name.

    >>> _labels(["km/h", "draw", "km_h"], ["draw"])
    ['km_h', 'draw_', 'km_h_']
    """
    used = set(taken)
    labels = []
    for name in names:
        label = name.replace("/", "_")
        while label in used:
            label += "_"
        used.add(label)
        labels.append(label)
    return labels
