"""`condens.load`: opens any model file, whichever kind of model it holds."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from condens.errors import ModelFileError
from condens.laziness import importing
from condens.persistence import load as load_network
from condens.persistence.container import kind_of
from condens.persistence.header import short

if TYPE_CHECKING:
    from condens.estimator import MDNRegressor
    from condens.nn import DensityNetwork


def load(
    path: str | os.PathLike[str], *, backbone: nn.Module | Callable[..., nn.Module] | None = None
) -> "DensityNetwork | MDNRegressor":
    """Return the model of a file: a network, or a fitted `MDNRegressor`.

    Nothing in the file is run. A file whose content is not, to the bit, what was saved raises
    `ModelFileError`.

    Args:
        path: of the file.
        backbone: for a network with a backbone that condens does not know: one like it, or a
            function without arguments that makes one; for a regressor, its parameter `backbone`.

    >>> from tempfile import TemporaryDirectory
    >>> from condens.nn import MixtureNetwork
    >>> from condens.persistence import save
    >>> with TemporaryDirectory() as place:
    ...     save(MixtureNetwork.of(3, 2), f"{place}/model.condens")
    ...     type(load(f"{place}/model.condens")).__name__
    'MixtureNetwork'
    """
    kind = kind_of(path)
    if kind == "network":
        return load_network(path, backbone=backbone)
    if kind != "regressor":
        raise ModelFileError(
            f"{os.fspath(path)}: its kind",
            got=f"is {short(kind)}",
            expected="this condens knows 'network' and 'regressor'",
            fix="Upgrade condens.",
        )
    try:
        with importing:
            from condens.estimator.regressor import MDNRegressor
    except ModuleNotFoundError as error:
        raise ModelFileError(
            str(path),
            got="holds an MDNRegressor",
            expected=f"that needs scikit-learn ({error})",
            fix="Install it: pip install 'condens[sklearn]'.",
        ) from error
    return MDNRegressor.load(path, backbone=backbone)
