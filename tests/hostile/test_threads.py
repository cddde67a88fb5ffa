"""Same seed, same bytes, in every thread; and Ctrl-C."""

import copy
import os
import signal
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from helpers.search import Refused, Wrong, finite, near, need, property_of
from sklearn.model_selection import GridSearchCV, cross_val_score

from condens import MDNRegressor
from condens.nn import MixtureNetwork
from condens.training import Settings, choose_components, train

pytestmark = pytest.mark.slow


def table(d, n):
    x = d.rng.normal(size=(n, 2))
    return x, x @ d.rng.normal(size=(2, 2)) + 0.3 * d.rng.normal(size=(n, 2))


def job(d, x, y):
    """Return a function that fits from a seed alone, and its answer."""
    kind = d.choice("job", ["fit", "train", "auto", "members", "integer"])
    noise = {name: 0.1 * d.flag(name, 0.3) for name in ("condition_noise", "target_noise")}
    options = {"epochs": 4, "batch_size": 16, **noise}
    dropout = d.choice("dropout", [0.0, 0.2])
    settings = Settings(**options)

    # Made once: making one is the user's own use of torch's generator.
    first = MixtureNetwork.of(2, 2, n_components=2, width=8, dropout=dropout)

    def fit():
        if kind == "train":
            network = copy.deepcopy(first)
            train(network, (torch.from_numpy(x), torch.from_numpy(y)), settings)
            with torch.no_grad():
                return network(torch.from_numpy(x[:5])).mean.numpy()
        target = np.round(y) if kind == "integer" else y
        model = MDNRegressor(
            "auto" if kind == "auto" else 2, width=8, dropout=dropout, random_state=3,
            n_members=2 if kind == "members" else 1, settings=settings,
            target_transform="integer" if kind == "integer" else None,
        )  # fmt: skip
        if kind == "auto":
            model.set_params(settings=Settings(**{**options, "epochs": 1}))
        return model.fit(x, target).predict(x[:5])

    return fit


def run_all(jobs):
    """Run functions in a thread each; return their answers, and raise what they raised."""
    answers, errors = [None] * len(jobs), []

    def work(i):
        try:
            answers[i] = jobs[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


@property_of(16, refusals=False, seconds=180)
def test_fits_in_threads(d):
    """Four fits at a time give the bytes of one."""
    fit = job(d, *table(d, d.integer("rows", 60, 120)))
    expected = fit()
    near(fit(), expected, "a second fit", rtol=0)
    for answer in run_all([fit] * 4):
        need(answer.tobytes() == expected.tobytes(), "a fit in a thread differs")


@property_of(12, refusals=False, seconds=180)
def test_users_generators_are_left_alone(d):
    """A user's draws are the same, whatever is fitted in another thread."""
    fit = job(d, *table(d, 60))
    seed = d.random.getrandbits(30)
    torch.manual_seed(seed)
    expected = [torch.rand(3) for _ in range(400)]
    fit()
    torch.manual_seed(seed)
    drawn, running = [], threading.Thread(target=fit)
    running.start()
    while len(drawn) < 400:
        drawn.append(torch.rand(3))
        time.sleep(0.0005)
    running.join()
    off = sum(not torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
    need(not off, f"{off} of 400 draws of the user changed")


@property_of(8, refusals=False, seconds=180)
def test_globals_are_put_back(d):
    """Thread counts, warning filters, grad mode and generators are as before."""
    fit = job(d, *table(d, 60))
    threads = d.choice("threads", [1, 2, 3])
    torch.set_num_threads(threads)
    warnings.simplefilter("error", DeprecationWarning)
    filters, state = list(warnings.filters), torch.get_rng_state()
    run_all([fit] * 3)
    need(torch.get_num_threads() == threads, f"{torch.get_num_threads()} threads, not {threads}")
    need(list(warnings.filters) == filters, "warning filters changed")
    need(torch.equal(torch.get_rng_state(), state), "torch's generator moved")
    need(torch.is_grad_enabled(), "gradients are off")
    torch.set_num_threads(1)


@property_of(12, refusals=False, seconds=12)
def test_interrupts(d):
    """One SIGINT: KeyboardInterrupt, or the best weights so far with a warning; loops end."""
    x, y = table(d, 400)
    kinds = ["fit", "train", "cross_val_score", "grid", "auto", "choose"]
    kind = d.note("kind", kinds[d.case % 6])
    after = d.number("seconds", 0.0, 0.6)
    settings = Settings(epochs=4000, patience=4000, batch_size=16)
    model = MDNRegressor(
        "auto" if kind == "auto" else 2, width=8, settings=settings, random_state=0
    )
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    with warnings.catch_warnings(record=True) as caught, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        timer.start()
        try:
            if kind in ("fit", "auto"):
                model.fit(x, y)
            elif kind == "cross_val_score":
                cross_val_score(model, x, y, cv=4)
            elif kind == "grid":
                GridSearchCV(model, {"n_components": [1, 2, 3]}, cv=2).fit(x, y)
            else:
                pair = torch.from_numpy(x), torch.from_numpy(y)
                if kind == "choose":
                    chosen = choose_components(lambda k: MixtureNetwork.of(2, 2, n_components=k, width=8), pair,
                                      settings, max_components=4)  # fmt: skip
                else:
                    network = MixtureNetwork.of(2, 2, n_components=2, width=8)
                    history = train(network, pair, settings, directory=folder)
        except KeyboardInterrupt:
            took = time.monotonic() - sent[0]
            need(took < 5, f"{kind} went on for {took:.1f} s")
            raise Refused from None
        took = time.monotonic() - sent[0]
    told = " ".join(str(w.message) for w in caught).lower()
    if kind == "train":
        need(history.stopped == "interrupted", f"stopped is {history.stopped!r}")
        return
    if kind == "fit":
        need(
            "interrupt" in told,
            f"fit ended after {len(model.history_.epochs)} epochs, without a word",
        )
        need(model.history_.epochs, "an untrained model is passed off as fitted")
        finite(model.predict(x[:3]), "prediction")
        return
    if kind == "choose" and took < 5 and chosen.history.stopped == "interrupted":
        return
    if took > 5:
        raise Wrong(f"{kind} went on to its end, {took:.1f} s")
    need(kind in ("auto", "choose") and "interrupt" in told, f"{kind} did not stop")
