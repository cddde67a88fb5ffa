"""What torch's compilers, exporters and transforms need to know of our code and classes."""

from collections.abc import Iterable
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree


def checks_values(*tensors: Tensor) -> bool:
    """Tell whether values may decide what happens next.

    They may not while torch.compile, torch.export, make_fx or torch.jit.trace record a graph,
    which has to serve other values too, under torch.func's transforms, and on the meta device,
    which has shapes only. There every check of a value is left out; checks of shapes and types
    remain.

    >>> checks_values(), checks_values(torch.empty(2, device="meta"))
    (True, False)
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or any(tensor.is_meta for tensor in tensors)
    )


def anywhere(mask: Tensor) -> bool:
    """Tell whether a mask is true anywhere; no, where values are not checked.

    >>> anywhere(torch.tensor([0.0, torch.nan]).isnan())
    True
    """
    return checks_values(mask) and bool(mask.any())


class Tree(Protocol):
    """A class whose objects can be taken apart into tensors and plain JSON values, and built."""

    def _tree(self) -> tuple[list[Any], Any]: ...

    @classmethod
    def _from_tree(cls, leaves: Iterable[Any], context: Any) -> Self: ...


_Kind = TypeVar("_Kind", bound=type[Tree])


def traceable(kind: _Kind) -> _Kind:
    """Register a class with torch: `torch.export` returns it, `torch.vmap` takes and returns it."""
    _pytree.register_pytree_node(
        kind,
        lambda whole: whole._tree(),
        kind._from_tree,
        serialized_type_name=f"condens.{kind.__name__}",
        to_dumpable_context=lambda context: context,
        from_dumpable_context=lambda context: context,
    )
    return kind
