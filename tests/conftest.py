import gc
import signal

import hypothesis
import numpy as np
import pytest
import torch
from helpers.search_summary import write_summary

# Fixed: a failure found today is found again tomorrow.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile("fixed")


# A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def seed():
    # torch.manual_seed seeds every device too, and formats the stack for each one that is absent:
    # a millisecond, ten thousand times.
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh():
    """Seeded, and with the validation that torch.compile turns off in passing."""
    seed()
    np.random.seed(0)  # noqa: NPY002  # scikit-learn's splitters draw from it
    torch.distributions.Distribution.set_default_validate_args(True)


def pytest_collectstart():
    # Modules that draw when they are imported draw the same in any order.
    seed()
    # Pyro switches it off when it is imported, and modules make mixtures when they are.
    torch.distributions.Distribution.set_default_validate_args(True)


def pytest_collection_finish():
    # Modules stay for good: looking for garbage among their objects, again and again, took 7 % of
    # the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_terminal_summary(terminalreporter):
    write_summary(terminalreporter)
