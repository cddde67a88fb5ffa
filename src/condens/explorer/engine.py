"""The work behind the server: a bounded pool of threads that answers requests in batches."""

import asyncio
import json
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from condens.errors import CondensError
from condens.explorer.schema import RequestError
from condens.explorer.views import Subject, Values, answer_all

LOG = logging.getLogger(__name__)

N_WORKERS = 2
# What a request costs, about, in units of the cheapest one.
COSTS = {"density": 8, "sample": 2, "query": 1, "python": 1}
# Cost of the requests that wait, beyond which more are turned away, and of one batch.
MAX_WAITING, MAX_BATCH = 512, 32
# Seconds that a request may wait, and that a report may take.
MAX_SECONDS, MAX_REPORT_SECONDS = 10.0, 120.0
RETRY_AFTER = 1


@dataclass(frozen=True)
class Job:
    """A request that waits for its answer."""

    kind: str
    request: Values
    done: "asyncio.Future[bytes]"
    deadline: float

    @property
    def cost(self) -> int:
        """About how long it takes."""
        return COSTS[self.kind]


class Engine:
    """Answers checked requests about one model.

    A free thread takes all requests that wait, up to a limit: alone a request is answered at
    once, and under load the network is run for many at a time.
    """

    def __init__(self, subject: Subject, *, n_workers: int = N_WORKERS) -> None:
        self.subject, self.n_workers = subject, n_workers
        self._pool = ThreadPoolExecutor(n_workers, "condens-answer", _one_thread)
        # A report takes seconds, and would keep a thread from its answers.
        self._reports = ThreadPoolExecutor(1, "condens-report", _one_thread)
        self._waiting: deque[Job] = deque()
        self._cost = self._running = 0
        self._report: asyncio.Task[str] | None = None
        self.n_batches = self.n_answers = 0

    async def ask(self, kind: str, request: Values) -> bytes:
        """Return the answer as JSON, or raise `RequestError`."""
        cost = COSTS[kind]
        if self._cost + cost > MAX_WAITING:
            raise _busy("too many requests wait")
        loop = asyncio.get_running_loop()
        job = Job(kind, request, loop.create_future(), time.monotonic() + MAX_SECONDS)
        self._waiting.append(job)
        self._cost += cost
        self._start()
        try:
            # A batch that runs is bounded by its cost; it gets as long again.
            return await asyncio.wait_for(job.done, 2 * MAX_SECONDS)
        except TimeoutError:
            raise _busy("the answer took too long") from None

    async def report(self) -> str:
        """Return the page of the report; it is made once."""
        if self._report is None:
            loop = asyncio.get_running_loop()

            async def make() -> str:
                return await loop.run_in_executor(self._reports, _make_report, self.subject)

            self._report = loop.create_task(make())
        try:
            return await asyncio.wait_for(asyncio.shield(self._report), MAX_REPORT_SECONDS)
        except TimeoutError:
            raise _busy("the report is not ready yet") from None

    def close(self) -> None:
        """Let the threads end."""
        for pool in (self._pool, self._reports):
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Give what waits to free threads."""
        while self._waiting and self._running < self.n_workers:
            batch = self._take()
            if batch:
                self._running += 1
                future = self._pool.submit(_answers, self.subject, batch)
                loop = batch[0].done.get_loop()
                future.add_done_callback(
                    lambda done, batch=batch, loop=loop: loop.call_soon_threadsafe(  # type: ignore[misc]
                        self._finish, batch, done
                    )
                )

    def _take(self) -> list[Job]:
        """Return the next batch, without jobs that nobody waits for any more."""
        batch: list[Job] = []
        cost, now = 0, time.monotonic()
        while self._waiting and cost < MAX_BATCH:
            job = self._waiting.popleft()
            self._cost -= job.cost
            if job.done.done():
                continue
            if job.deadline < now:
                job.done.set_exception(_busy("the request waited too long"))
                continue
            batch.append(job)
            cost += job.cost
        return batch

    def _finish(self, batch: list[Job], done: Any) -> None:
        self._running -= 1
        self.n_batches += 1
        self.n_answers += len(batch)
        error = done.exception()
        found = [error] * len(batch) if error is not None else done.result()
        for job, answer in zip(batch, found, strict=True):
            if job.done.done():
                continue
            if isinstance(answer, BaseException):
                job.done.set_exception(answer)
            else:
                job.done.set_result(answer)
        self._start()


def _one_thread() -> None:
    """Keep torch from starting threads of its own in each of ours."""
    torch.set_num_threads(1)


def _answers(subject: Subject, batch: list[Job]) -> list[bytes | Exception]:
    """Answer a batch; an error is that of its request alone."""
    try:
        found = answer_all(subject, [(job.kind, job.request) for job in batch])
        return [one if isinstance(one, CondensError) else _encoded(one) for one in found]
    except Exception as error:
        if len(batch) > 1:
            return [_answers(subject, [job])[0] for job in batch]
        if not isinstance(error, CondensError):
            LOG.exception("a request failed")
        return [error]


def _encoded(answer: Values) -> bytes:
    return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode("ascii")


def _make_report(subject: Subject) -> str:
    return subject.report


def _busy(got: str) -> RequestError:
    return RequestError(
        "the server",
        status=503,
        code="busy",
        got=f"is busy ({got})",
        expected="it answers a bounded number at a time",
        fix=f"Ask again after {RETRY_AFTER} s.",
    )
