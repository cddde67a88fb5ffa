"""The scaling model: its formulas, and the constants that it was given."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale"


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("scale_model", SCALE / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def network(model):
    return model.Network(
        "one",
        parameters=1000,
        matrices=900,
        tensors=4,
        fixed=1e-3,
        row=1e-6,
        pack=1e-4,
        checkpoint=0.1,
    )


def send(pieces, workers, step):
    """Return the state after a step of a ring all-reduce: each passes a piece to the next."""
    after = [list(each) for each in pieces]
    for rank in range(workers):
        piece = (rank - step) % workers
        to, last = (rank + 1) % workers, step >= workers - 1
        if last:
            piece = (rank + 1 - (step - workers + 1)) % workers
        after[to][piece] = pieces[rank][piece] | (frozenset() if last else pieces[to][piece])
    return after


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_ring_takes_as_many_steps_and_bytes_as_one_that_is_played(model, workers):
    pieces = [[frozenset([rank])] * workers for rank in range(workers)]
    steps = 0
    while any(len(piece) < workers for each in pieces for piece in each):
        pieces = send(pieces, workers, steps)
        steps += 1
    link = model.Link(latency=1.0, bandwidth=1e30)
    assert model.ring(link, workers, 1) == pytest.approx(steps)
    # A step passes one of as many pieces.
    link = model.Link(latency=0.0, bandwidth=1.0)
    assert model.ring(link, workers, 100) == pytest.approx(steps * 100 / workers)


def test_one_worker_exchanges_nothing_and_is_efficient(model, network):
    link = model.Link(1.0, 1.0)
    assert model.ring(link, 1, 100) == model.tree(link, 1, 100) == 0
    assert model.weak(network, 512, 1, 0.0) == model.strong(network, 512, 1, 0.0) == 1


def test_efficiencies_are_ratios_of_steps(model, network):
    # 1 + 0.512 ms alone; 0.1 ms to pack and 0.388 ms to exchange.
    assert model.weak(network, 512, 64, 0.388e-3) == pytest.approx(1.512 / 2.0)
    assert model.weak(network, 512, 64, 0.388e-3, least=4e-3) == pytest.approx(1.512 / 4.0)
    assert model.strong(network, 4000, 4, 0.9e-3) == pytest.approx(5.0 / (4 * 3.0))


def test_reading_is_shared_by_no_more_workers_than_lanes(model):
    assert model.reading(1e-6, 512, 64) == pytest.approx(512e-6)
    assert model.reading(1e-6, 512, 1024) == pytest.approx(16 * 512e-6)


def test_bytes_and_operations(model, network):
    assert network.bytes_exchanged == 4 * 1006
    assert network.flops_per_row == 5400


def test_the_tables_are_printed_from_the_constants_beside_it(model, capsys):
    model.main()
    printed = capsys.readouterr().out
    constants = model.load()
    for one in constants["networks"]:
        assert f"| {one['name']} | {one['parameters']} |" in printed
    assert printed.count("| 1024 |") == 3 * len(constants["networks"])
