"""Saving and loading whole models."""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from torch import Tensor

from condens.errors import ArgumentError, CondensError, ModelFileError
from condens.nn import DensityNetwork
from condens.persistence.container import read, write
from condens.persistence.faults import naming, reason, short
from condens.persistence.networks import Backbone, network_from_dict, network_to_dict

# Where the models of a kind live that this layer cannot import: module and class, a `Storable`.
_STORABLE = {"regressor": ("condens.estimator.regressor", "MDNRegressor")}


@runtime_checkable
class Storable(Protocol):
    """A model that tells what a file must hold of it, and is made again from that."""

    kind: ClassVar[str]

    def to_document(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what JSON can hold, and tensors."""

    @classmethod
    def from_document(
        cls,
        document: dict[str, Any],
        tensors: dict[str, Tensor],
        *,
        backbone: Backbone | None = None,
    ) -> Self:
        """Return the model; raise `ModelFileError` where that cannot be."""


def save(
    model: DensityNetwork | Storable,
    path: str | os.PathLike[str],
    *,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Save a model to one safetensors file, whole or not at all.

    Equal models give equal bytes. What was at `path` stays until the new file is safe; a link
    is followed, and stays.

    Args:
        model: a network, an ensemble or an estimator.
        path: of the file, a new one or one to replace.
        training: what is worth knowing of how it was trained, as JSON can hold it.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> from condens.nn import MixtureNetwork
    >>> network, x = MixtureNetwork.of(3, 2).eval(), torch.zeros(1, 3)
    >>> with TemporaryDirectory() as place:
    ...     save(network, f"{place}/model.condens")
    ...     loaded = load(f"{place}/model.condens")
    >>> torch.equal(loaded(x).means, network(x).means)
    True
    """
    kind = getattr(model, "kind", None)
    if isinstance(model, DensityNetwork):
        kind, document = "network", {"network": network_to_dict(model)}
        tensors = model.state_dict()
    elif isinstance(model, Storable) and kind in _STORABLE:
        document, tensors = model.to_document()
    else:
        raise ArgumentError(
            "model",
            got=f"is {type(model).__name__}",
            expected="a network of condens.nn was expected",
            fix="Pass the network itself.",
        )
    write(path, {"training": dict(training or {}), **document, "kind": kind}, tensors)


def load(path: str | os.PathLike[str], *, backbone: Backbone | None = None) -> Any:
    """Return the model of a file, on the CPU and in evaluation mode.

    Nothing in the file is run. A file that is not, to the bit, what was saved raises
    `ModelFileError`.

    Args:
        path: of the file.
        backbone: for a backbone that condens does not know: one like it, which is copied, or a
            function without arguments that makes one; for an estimator, the function that its
            parameter `backbone` was.
    """
    document, tensors = read(path)
    with naming(path):
        kind = document.get("kind")
        if kind == "network":
            if document.keys() != {"kind", "network", "training"}:
                raise ModelFileError(
                    "its document",
                    got=f"has {short(sorted(document))}",
                    expected="kind, network and training were expected",
                )
            return network_from_dict(document["network"], tensors, backbone=backbone)
        if not isinstance(kind, str) or kind not in _STORABLE:
            known = ", ".join(("network", *_STORABLE))
            raise ModelFileError(
                "its kind",
                got=f"is {short(kind)}",
                expected=f"this condens knows {known}",
                fix="Upgrade condens.",
            )
        try:
            return _class_of(kind).from_document(document, tensors, backbone=backbone)
        except CondensError:
            raise
        except Exception as error:  # a document may be wrong in any way
            raise ModelFileError(
                "its document",
                got=f"cannot be that of a {kind} ({reason(error)})",
                expected="one that condens saved was expected",
            ) from error


def _class_of(kind: str) -> type[Storable]:
    module, name = _STORABLE[kind]
    try:
        found: type[Storable] = getattr(import_module(module), name)
    except ImportError as error:
        raise ModelFileError(
            "its kind",
            got=f"is {kind!r}, which cannot be imported ({error})",
            expected=f"{module} is needed",
            fix="Install what it needs: pip install 'condens[sklearn]'.",
        ) from error
    return found
