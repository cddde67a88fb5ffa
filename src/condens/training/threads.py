"""One thread for small steps: two that wait for each other lose more than they share.

A step of a small network takes less time than the threads of OpenMP need to meet, and where other
work has their cores, each meeting waits for the system to bring them back.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

# Multiplications of a forward pass below which a step is small.
SMALL = 1 << 23


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in this Python thread alone, where that can be said.

    `torch.set_num_threads` would be heard by every thread that begins meanwhile, for good, and
    by MKL in all of them. OpenMP and MKL have settings of a thread's own, which torch reads.
    """
    before = torch.get_num_threads()
    limits = _limits()
    if limits is None or before == 1:
        yield
        return
    openmp, mkl = limits
    openmp(1)
    kept = mkl(1)
    try:
        yield
    finally:
        openmp(before)
        mkl(kept)


@cache
def _limits() -> tuple[Callable[[int], object], Callable[[int], int]] | None:
    """Return what sets the threads of OpenMP, and of MKL, in the calling thread."""
    try:
        openmp = ctypes.CDLL(None).omp_set_num_threads
        mkl: Callable[[int], int] = _no_mkl
        if torch.backends.mkl.is_available():
            library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
            mkl = ctypes.CDLL(str(library)).MKL_Set_Num_Threads_Local
    except (OSError, TypeError, AttributeError):
        return None
    # Another OpenMP than torch's would not be heard.
    before = torch.get_num_threads()
    openmp(before + 1)
    heard = torch.get_num_threads() == before + 1
    openmp(before)
    return (openmp, mkl) if heard else None


def _no_mkl(_: int) -> int:
    return 0
