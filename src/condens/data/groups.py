"""Groups of rows, such as those of one patient."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from condens.data.arrays import dense
from condens.errors import ShapeError

Groups = NDArray[Any]


def read_groups(groups: ArrayLike, n_rows: int) -> Groups:
    """Return the group of each row [n]."""
    given = dense(groups, "groups").cpu() if isinstance(groups, Tensor) else groups
    try:
        array: Groups = np.asarray(given)
        shape = f"shape {list(array.shape)}"
    except ValueError:
        array, shape = np.empty(0), "entries of different lengths"
    if array.shape != (n_rows,):
        raise ShapeError(
            "groups",
            got=f"has {shape}",
            expected=f"there are {n_rows} rows",
            fix="Pass one group a row.",
        )
    return array


def number_groups(groups: Groups) -> Tensor:
    """Return the numbers of groups, which may be of any kind.

    >>> number_groups(np.array(["b", None, "b", 3], dtype=object))
    tensor([0, 1, 0, 2])
    """
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups.tolist()])
