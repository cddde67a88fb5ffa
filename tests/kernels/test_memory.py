"""Large buffers: the same memory again, never while anyone can see it."""

import os
import threading

import pytest
import torch

from condens.kernels import memory
from condens.kernels.memory import scratch

LIKE = torch.empty(0)
SHAPE = (1000, 2000)


@pytest.fixture(autouse=True)
def nothing_kept():
    memory.release()
    yield
    memory.release()


def test_memory_is_used_again_once_nobody_refers_to_it():
    first = scratch(SHAPE, LIKE)
    address = first.data_ptr()
    del first
    assert scratch(SHAPE, LIKE).data_ptr() == address


@pytest.mark.parametrize("keep", [lambda t: t, lambda t: t[3:4, 5], lambda t: t.numpy()])
def test_memory_in_use_is_left_alone(keep):
    first = scratch(SHAPE, LIKE).fill_(1)
    kept = keep(first)
    del first
    scratch(SHAPE, LIKE).fill_(2)
    scratch(SHAPE, LIKE).fill_(3)
    assert (kept == 1).all()


def test_shape_stride_and_dtype_are_those_asked_for():
    made = scratch((2, 3), LIKE.double(), (1, 400_000))
    assert made.shape == (2, 3)
    assert made.stride() == (1, 400_000)
    assert made.dtype == torch.float64
    assert made.untyped_storage().nbytes() >= memory.MIN_BYTES
    assert scratch((4, 5, 6), LIKE).is_contiguous()
    assert scratch((100, 200, 300), LIKE).is_contiguous()


def test_little_is_kept_and_can_be_given_back():
    for size in (1, 3, 9, 27, 81, 100):
        scratch((size, 1 << 20), LIKE)
    assert len(memory._blocks) <= 4
    memory.release()
    assert not memory._blocks


def test_a_small_tensor_does_not_take_a_large_block():
    large = scratch((8, *SHAPE), LIKE)
    address = large.data_ptr()
    del large
    assert scratch(SHAPE, LIKE).data_ptr() != address


def test_threads_do_not_share_a_block():
    wrong = []

    def work(number):
        for _ in range(200):
            block = scratch((300_000,), LIKE).fill_(number)
            if not (block == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_its_own():
    block = scratch(SHAPE, LIKE).fill_(1)
    child = os.fork()
    if not child:
        block.numpy()[:] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert (block == 1).all()
