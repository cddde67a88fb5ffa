"""One thread for small steps, where several spend more time waiting for each other than working.

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
MAX_SMALL_STEP = 1 << 23


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in this Python thread alone, where that is possible.

    `torch.set_num_threads` would also hold for every thread that begins meanwhile, for good, and
    for MKL in all of them. OpenMP and MKL have settings for each thread, which torch reads.
    """
    before = torch.get_num_threads()
    openmp, mkl = _limits()
    openmp(1)
    kept = mkl(1)
    try:
        yield
    finally:
        openmp(before)
        mkl(kept)


@cache
def _limits() -> tuple[Callable[[int], object], Callable[[int], int]]:
    """Return the functions that set the threads of OpenMP and MKL in the calling thread.

    Where there are none, `int`, which sets nothing.
    """
    try:
        openmp = ctypes.CDLL(None).omp_set_num_threads
        mkl: Callable[[int], int] = int
        if torch.backends.mkl.is_available():
            library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
            mkl = ctypes.CDLL(str(library)).MKL_Set_Num_Threads_Local
    except (OSError, TypeError, AttributeError):
        return int, int
    # Another OpenMP than torch's would have no effect on torch.
    before = torch.get_num_threads()
    openmp(before + 1)
    obeyed = torch.get_num_threads() == before + 1
    openmp(before)
    return (openmp, mkl) if obeyed else (int, int)
