"""Large buffers that are used again.

The allocator gives blocks of many megabytes back to the system when they are freed, and the next
step pays for every page anew: for a loss of 32768 rows that doubles the time. Here the last such
blocks are kept.
"""

import math
import mmap
import sys
from collections.abc import Sequence
from threading import Lock

import torch
from torch import Tensor

# Smaller tensors are the allocator's business; larger blocks are not kept.
MIN_BYTES, MAX_BYTES = 1 << 20, 1 << 29
_PAGE_BYTES = 1 << 21
# One for each gradient of a loss: target, logits, means and factors.
_BLOCKS_KEPT = 4

_blocks: list[mmap.mmap] = []
_lock = Lock()


def scratch(shape: Sequence[int], like: Tensor, stride: Sequence[int] | None = None) -> Tensor:
    """Return an uninitialised tensor of the dtype and on the device of `like`.

    Its memory is used again once no tensor refers to it.
    """
    if stride is None:
        stride = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    numbers = span(shape, stride)
    size = numbers * like.element_size()
    if not like.is_cpu or not MIN_BYTES <= size <= MAX_BYTES:
        return like.new_empty_strided(shape, stride)
    return torch.frombuffer(_block(size), dtype=like.dtype, count=numbers).as_strided(shape, stride)


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many numbers lie between the first and the last of a tensor, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


def release() -> None:
    """Give the memory kept for later steps back to the system."""
    with _lock:
        _blocks.clear()


def _block(size: int) -> mmap.mmap:
    """Return a block that no tensor refers to, or a new one."""
    with _lock:
        for i in range(len(_blocks)):
            # Two references: the list's, and that of the call which counts.
            if size <= len(_blocks[i]) <= 2 * size and sys.getrefcount(_blocks[i]) == 2:
                _blocks.append(_blocks.pop(i))
                return _blocks[-1]
        # Private: a forked process gets copies.
        private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANON}
        _blocks.append(mmap.mmap(-1, -(-size // _PAGE_BYTES) * _PAGE_BYTES, **private))
        del _blocks[:-_BLOCKS_KEPT]
        return _blocks[-1]
