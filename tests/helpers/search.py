"""A search for input that breaks the library: properties over drawn cases, in child processes.

A property is a test with one argument, a `Draw`. Each of its cases ends in one of these ways:

- *answered*: the answer was right, by a reference that shares no code with the library;
- *refused*: a named error of condens, or one that the property says is documented;
- *failed*: a wrong answer, a NaN, a bare exception, a refusal of what is valid, a process that
  died or that did not come to an end.

Cases run in a process of their own, which tells before each what it is about to do: a case
that corrupts memory ends that process and not the search, which goes on behind it. The values
follow from the seed in CONDENS_HOSTILE_SEED, the property's name and the number of the case, and
grow with this number: the first counter-example is a small one.
"""

import faulthandler
import importlib
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from helpers.search_summary import PROPERTY, SEED

from condens.errors import CondensError

# A property is given up after so many processes that died of it.
DEATHS = 3
# Bytes that a process may map: beyond, an allocation fails and the machine lives on.
MEMORY = 16 << 30
# Seconds of waiting for a second of computing, on a machine that has other things to do.
WAITS = 10
PRELOAD = ["condens.training", "condens.persistence", "condens.functional", "torch._dynamo"]

Plain = int | float | bool | str | None


class Wrong(AssertionError):  # noqa: N818  (a verdict)
    """An answer that is not right."""


class Refused(Exception):  # noqa: N818  (a verdict)
    """A refusal that a property has looked at and found right."""


class Draw:
    """The values of one case, by name, so that a report can tell them."""

    def __init__(self, name, case, cases, tell=lambda *_: None):
        key = f"{SEED}/{name}/{case}"
        self.random = random.Random(key)
        self.rng = np.random.default_rng(self.random.getrandbits(64))
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        self.case, self.size = case, (case + 1) / cases
        self.facts, self.tell = {}, tell

    def note(self, name, value):
        """Keep a value by name, and tell it at once: the process may not live to the end."""
        self.facts[name] = value if isinstance(value, Plain) else repr(value)[:200]
        self.tell(name, self.facts[name])
        return value

    def choice(self, name, options):
        """Return one of the options; of a mapping, the value of a drawn key."""
        chosen = self.random.choice(list(options))
        self.note(name, chosen)
        return options[chosen] if isinstance(options, dict) else chosen

    def flag(self, name, chance=0.5):
        return self.note(name, self.random.random() < chance)

    def integer(self, name, low, high):
        """Return a whole number from low to high; in early cases it stays near low."""
        return self.note(name, self.random.randint(low, low + math.ceil((high - low) * self.size)))

    def number(self, name, low, high):
        return self.note(name, self.random.uniform(low, high))

    def power(self, name, low, high):
        """Return ten to a power between low and high."""
        return self.note(name, 10.0 ** self.random.uniform(low, high))

    def edge(self, name, low, high):
        """Return ten to a power between low and high, every other time near one of the two."""
        near_end = self.random.choice([(low, high), (low, low + 3), (high - 3, high)])
        return self.power(name, *near_end)

    def normal(self, *shape, dtype=torch.float64):
        """Return standard normal numbers."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(dtype)


@dataclass
class Report:
    """What came of a property."""

    name: str
    cases: int
    answered: int = 0
    refused: int = 0
    failures: list = field(default_factory=list)
    given_up: bool = False
    seconds: float = 0.0

    @property
    def tried(self):
        return self.answered + self.refused + len(self.failures)

    def add(self, case, facts, outcome, text):
        if outcome == "answered":
            self.answered += 1
        elif outcome == "refused":
            self.refused += 1
        else:
            self.failures.append((case, facts, text))

    def summary(self):
        """Return plain values, which go from a worker of pytest-xdist to the terminal."""
        return {
            "name": self.name,
            "cases": self.tried,
            "answered": self.answered,
            "refused": self.refused,
            "failed": len(self.failures),
            "given_up": self.given_up,
            "seconds": self.seconds,
            "text": self.text() if self.failures else "",
        }

    def text(self):
        case, facts, text = self.failures[0]
        told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        kinds = {}
        for *_, other in self.failures:
            kind = re.sub(r"[-+]?\d[\d.]*(e[-+]?\d+)?", "#", other.partition("\n")[0])[:150]
            kinds[kind] = kinds.get(kind, 0) + 1
        often = sorted(kinds.items(), key=lambda item: -item[1])[:6]
        return (
            f"{len(self.failures)} of {self.tried} cases failed (seed {SEED}); "
            f"the first is case {case}: {told}\n{text}\n"
            + "\n".join(f"  {count:5d} × {kind}" for kind, count in often)
        )


def property_of(cases, *, refusals=True, accepts=(), seconds=60.0):
    """Make a test of a property: `cases` draws, each in a process that may die.

    Args:
        refusals: whether a named error is an answer; not where the input is valid.
        accepts: errors that are documented beside those of condens.
        seconds: of computing that a case may take.
    """

    def decorate(body):
        def test(record_property):
            report = Report(body.__name__.removeprefix("test_"), cases)
            _search(report, body, seconds)
            record_property(PROPERTY, report.summary())
            if report.failures:
                raise Wrong(report.text())

        test.body, test.cases = body, cases
        test.refusals, test.accepts = refusals, tuple(accepts)
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        return test

    return decorate


def _search(report, body, seconds):
    """Run all cases, in a new process wherever one died."""
    module = "hostile." + body.__module__.rpartition(".")[2]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    first, deaths = 0, 0
    while first < report.cases:
        if deaths == DEATHS:
            report.given_up = True
            return
        first, died = _run(report, context, (module, body.__name__, first), seconds)
        deaths += died


def _run(report, context, what, seconds):
    """Run cases in one process; return the next case, and whether the process died."""
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as place:
        log = Path(place, "log")
        process = context.Process(target=_work, args=(*what, theirs, str(log)))
        process.start()
        theirs.close()
        case, facts, open_case, fate = what[2], {}, True, "died"
        began, end = 0.0, time.monotonic() + WAITS * seconds
        try:
            while True:
                if not ours.poll(1.0):
                    if _spent(process.pid) - began < seconds and time.monotonic() < end:
                        continue
                    began, fate = began + seconds, f"did not come to an end in {seconds:g} s"
                    break
                kind, *rest = ours.recv()
                if kind == "begin":
                    (case,), facts, open_case = rest, {}, True
                    began, end = _spent(process.pid), time.monotonic() + WAITS * seconds
                elif kind == "fact":
                    facts[rest[0]] = rest[1]
                elif kind == "end":
                    report.add(case, facts, *rest)
                    open_case = False
                else:
                    (began,), open_case = rest, False
                    break
        except EOFError:
            pass
        report.seconds += began
        if process.is_alive() and fate != "died":
            process.kill()
        process.join()
        if not open_case and process.exitcode == 0:
            return report.cases, False
        if fate == "died":
            code = process.exitcode
            fate += f" of {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
        told = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        report.add(case, facts, "failed", "\n".join([f"the process {fate}", *told[-12:]]))
    return case + 1, True


def _spent(pid):
    """Return the seconds that a process has computed, which other processes do not prolong."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # gone, or a system without
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _work(module, name, first, pipe, log):
    """Run a property's cases from `first` on and send what comes of each."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.enable(os.fdopen(os.dup(out), "w"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    test = getattr(importlib.import_module(module), name)
    for case in range(first, test.cases):
        pipe.send(("begin", case))
        draw = Draw(name, case, test.cases, lambda *fact: pipe.send(("fact", *fact)))
        torch.manual_seed(case)
        torch.distributions.Distribution.set_default_validate_args(True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome, text = _outcome(test, draw)
        pipe.send(("end", outcome, text))
    pipe.send(("done", time.process_time()))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)


def _outcome(test, draw):
    try:
        test.body(draw)
    except Wrong as error:
        return "failed", str(error)
    except Refused:
        return "refused", ""
    except CondensError as error:
        if test.refusals:
            return "refused", ""
        return "failed", f"refused what is valid: {type(error).__name__}: {error}"
    except test.accepts:
        return "refused", ""
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).strip().partition("\n")[0][:200]
        where = f"{Path(at.filename).name}:{at.lineno}"
        return "failed", f"bare {type(error).__name__} ({where}): {text}"
    return "answered", ""


# What the properties ask of an answer.


def need(true, text):
    """Fail with a text unless something is true."""
    if not true:
        raise Wrong(text)


def refused(call, what, *also):
    """Need a call to raise a named error, or one of those given."""
    try:
        answer = call()
    except (CondensError, *also) as error:
        raise Refused from error
    raise Wrong(f"{what}: answered {str(answer)[:150]} where nothing can be answered")


def numbers(value):
    """Return the numbers of a tensor, an array, an estimate or a tuple of them, flat."""
    if isinstance(value, tuple | list):
        return np.concatenate([numbers(part) for part in value]) if value else np.zeros(0)
    if isinstance(value, torch.Tensor):
        value = value.detach().to(torch.float64).cpu().numpy()
    return np.asarray(value, dtype=np.float64).reshape(-1)


def no_nan(value, what):
    """Need an answer without NaN."""
    found = int(np.isnan(numbers(value)).sum())
    need(not found, f"{what}: {found} NaN")
    return value


def finite(value, what):
    """Need an answer of finite numbers."""
    bad = ~np.isfinite(numbers(value))
    need(not bad.any(), f"{what}: {int(bad.sum())} not finite, such as {numbers(value)[bad][:1]}")
    return value


def near(got, expected, what, *, rtol=1e-9, atol=0.0):
    """Need an answer to equal a reference, infinities included."""
    got, expected = numbers(got), numbers(expected)
    need(got.shape == expected.shape, f"{what}: {got.shape} numbers for {expected.shape}")
    with np.errstate(all="ignore"):
        off = ~((np.abs(got - expected) <= atol + rtol * np.abs(expected)) | (got == expected))
    if off.any():
        i = int(off.argmax())
        text = f"{what}: {got[i]!r} for {expected[i]!r}"
        raise Wrong(f"{text} ({int(off.sum())} of {off.size} off)")
