"""Processes that train or hold a directory, to be killed.

They are forked from a server that has imported torch and done nothing else: real processes
that start in milliseconds. A test names one of the functions below as what to run.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from condens.nn import Ensemble, MixtureNetwork
from condens.training import Settings, train
from condens.training.run_directory import RunDirectory

PATIENCE = 60.0


@contextmanager
def process(function, *arguments):
    """Run a function of this file in another process; kill it in the end."""
    context = multiprocessing.get_context("forkserver")
    # The second is what torch imports when the first optimiser is made.
    context.set_forkserver_preload(
        [
            "condens.estimator.regressor",
            "condens.inference",
            "sklearn.model_selection",
            "torch._dynamo",
        ]
    )
    started = context.Process(target=function, args=arguments)
    started.start()
    try:
        yield started
    finally:
        started.kill()
        started.join()
        started.close()


def finish(function, *arguments):
    """Run a function of this file in another process to its end; return the exit code."""
    with process(function, *arguments) as running:
        running.join(PATIENCE)
        return running.exitcode


def wait_for(condition):
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def state(step=0, size=10):
    return {"x": torch.arange(float(size)) + step}, {"step": step, "note": "ünï", "loss": 0.1}


def hold(path, ready):
    """Hold a directory until killed."""
    with RunDirectory(path) as run:
        run.save(*state())
        Path(ready).touch()
        time.sleep(PATIENCE)


def enter(path):
    """Enter a directory; exit with 3 where it is in use."""
    from condens.errors import RunDirectoryError

    try:
        with RunDirectory(path):
            pass
    except RunDirectoryError as error:
        sys.exit(3 if "is being written by another process" in str(error) else 4)


def save_until_full(path, bytes_a_file):
    """Save small states, then one that the system refuses; exit with 3 if by name."""
    import resource

    from condens.errors import RunDirectoryError

    # Ignored, the signal becomes an error of the write itself, as on a full disk.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, bytes_a_file))
    with RunDirectory(path) as run:
        for step in range(3):
            run.save(*state(step))
        try:
            run.save(*state(3, size=bytes_a_file))
        except RunDirectoryError as error:
            sys.exit(3 if "cannot be written" in str(error) else 4)


def save_too_large(path, bytes_a_file):
    """Save a model that the system refuses; exit with 3 if by name."""
    import resource

    from condens.errors import ModelFileError
    from condens.persistence import save

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, bytes_a_file))
    try:
        save(network(width=bytes_a_file // 100), path)
    except ModelFileError as error:
        sys.exit(3 if "cannot be written (File too large)" in str(error) else 4)


def die_in_a_write(path):
    """Be killed between the writing of a file and its move."""
    from condens.files import write_whole

    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    write_whole(path, b"half")


def stand_in_a_write(path):
    """Stand still in the middle of a write until there is a file `go` beside it."""
    from condens.files import write_whole

    synced = os.fsync

    def waits(descriptor):
        os.fsync = synced
        wait_for((path.parent / "go").exists)

    os.fsync = waits
    write_whole(path, b"slow")


def problem(rows=2000, missing=0.0, weights=False, validation=False):
    """Return conditions and targets with two ridges, and more where asked for."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, 2, generator=generator)
    noise = torch.randn(rows, 2, generator=generator)
    side = torch.where(torch.rand(rows, 1, generator=generator) < 0.5, -1.0, 1.0)
    y = torch.cat([x[:, :1] + 0.3 * noise[:, :1], side * x[:, 1:] + 0.2 * noise[:, 1:]], 1)
    if missing:
        y[torch.rand(rows, 2, generator=generator) < missing] = torch.nan
    data = (x, y, torch.rand(rows, generator=generator)) if weights else (x, y)
    return {"data": data, "validation": (x[:50], y[:50]) if validation else None}


def network(seed=11, **options):
    """Return a small network that is the same in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"n_components": 3, "width": 12, "dropout": 0.2, **options}
        return MixtureNetwork.of(2, 2, **options)


def settings(**changes):
    """Return settings under which everything random is in use."""
    return Settings(
        **{
            "epochs": 3,
            "batch_size": 64,
            "learning_rate": 3e-3,
            "condition_noise": 0.05,
            "target_noise": 0.05,
            "average": 0.95,
            "patience": 100,
            "seed": 5,
        }
        | changes
    )


def run(out, directory=None, changes=None, options=None, events=None, members=1):
    """Train to the end and write the weights and the history to a file.

    With `events`, die at that number of openings, moves and removals in the directory. With
    several members, an ensemble.
    """
    torch.set_num_threads(1)
    if events is not None:
        die_after(events, str(directory))
    trained = network()
    if members > 1:
        trained = Ensemble([network(seed) for seed in range(members)])
    history = train(
        trained,
        **problem(**(options or {})),
        settings=settings(**(changes or {})),
        directory=directory,
        checkpoint_seconds=0.0,
    )
    record = {"weights": trained.state_dict(), "history": history.to_dict()}
    torch.save(record, f"{out}.part")
    Path(f"{out}.part").rename(out)


class Alarm(torch.nn.Module):
    """A backbone that interrupts its own process at a moment, by real signals."""

    features = 2
    MOMENTS = {  # noqa: RUF012
        "first validation": lambda self: not self.training and not self.steps,
        "first batch": lambda self: self.steps == 1,
        "middle": lambda self: self.steps == 10,
        "validation": lambda self: not self.training and self.steps == 12,
        "last validation": lambda self: not self.training and self.steps == 24,
        "calibration": lambda self: self.weight.dtype == torch.float64,
    }

    def __init__(self, moment, signals):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.moment, self.signals, self.steps = moment, signals, 0

    def forward(self, condition):
        self.steps += self.training
        if self.moment in self.MOMENTS and self.MOMENTS[self.moment](self):
            signals, self.signals = self.signals, 0
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGINT)
        return self.weight * condition


def interrupted_fit(out, door, moment, signals=1, fitted=False):
    """Fit through some door of `MDNRegressor`, interrupt it at a moment, write what came of it.

    An epoch has 4 steps. The moment "parent" leaves the signal to the parent process.
    """
    from sklearn.model_selection import GridSearchCV, cross_val_score

    from condens import MDNRegressor
    from condens.inference import posterior

    torch.set_num_threads(1)
    x, y = (t.double().numpy() for t in problem(160)["data"])
    endless = 10**6 if moment == "parent" else 6
    given = Settings(epochs=endless, patience=endless, batch_size=32, validation_fraction=0.2)
    made = []

    def make(columns):
        made.append(1)
        if moment == "making":
            os.kill(os.getpid(), signal.SIGINT)
        Path(f"{out}.ready").touch()
        return Alarm(moment, signals)

    model = MDNRegressor(2, n_members=1, settings=given, random_state=0, backbone=make)
    if fitted:
        model.set_params(backbone=None).fit(x, y).set_params(backbone=make)
    before = vars(model).copy()
    doors = {
        "fit": lambda: model.fit(x, y),
        "calibrated": lambda: model.set_params(calibration_fraction=0.3).fit(x, y),
        "cross_val_score": lambda: cross_val_score(model, x, y, cv=3),
        "GridSearchCV": lambda: GridSearchCV(model, {"n_components": [1, 2]}, cv=2).fit(x, y),
        "auto": lambda: model.set_params(n_components="auto").fit(x, y),
        "members": lambda: model.set_params(n_members=3, n_components="auto").fit(x, y),
        "posterior": lambda: Path(f"{out}.ready").touch() or posterior(y, x, settings=given),
    }
    result = {"raised": None}
    try:
        doors[door]()
    except KeyboardInterrupt as error:
        result["raised"] = str(error)
    held = vars(model)
    result["made"] = len(made)
    result["handler"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    result["as before"] = all(held[name] is value for name, value in before.items())
    result["new"] = sorted(held.keys() - before.keys())
    if "network_" in held:
        result["stopped"] = model.history_.stopped
        result["epochs"] = len(model.history_.epochs)
        result["best"] = model.history_.best_epoch
        result["score"] = float(model.score_samples(x, y).mean())
    Path(f"{out}.part").write_text(json.dumps(result))
    Path(f"{out}.part").rename(out)


def die_after(events, directory):
    """Kill this process at that number of openings, moves and removals in a directory."""
    left = events

    def hook(event, arguments):
        nonlocal left
        if event in ("open", "os.rename", "os.remove") and directory in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
