"""The tables: what is measured, and at which sizes."""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import memory
import torch
from contenders import OURS, Contender, Problem
from network import Network
from peers import DIAGONAL, PEERS, SAMPLERS
from timing import Job, Row, best_times
from torch import Tensor

from condens.kernels import native

T = TypeVar("T")
Size = tuple[int, int, int]  # b, K, D


class Effort(NamedTuple):
    """How much to measure: all sizes, or few of them in little time."""

    quick: bool
    threads: int

    def choose(self, quick: T, full: T) -> T:
        """Return the one or the other."""
        return quick if self.quick else full


def loss(effort: Effort) -> list[Row]:
    """Measure loss and gradients for every (b, K, D)."""
    sizes = [
        (b, k, d)
        for b in (256, 4096)
        for k in effort.choose((5,), (1, 5, 20))
        for d in effort.choose((1, 2, 10), (1, 2, 5, 10, 20, 50))
    ]
    return _losses(sizes, OURS, effort.choose(1.5, 5.0))


def growth(effort: Effort) -> dict[str, list[Row]]:
    """Measure loss and gradients against K and against b; `loss` has them against D."""
    ours = {name: OURS[name] for name in ("condens", "condens batch-last", "condens eager")}
    batch, seconds = effort.choose((256, 0.7), (1024, 4.0))
    n_components = effort.choose((1, 5, 20), (1, 2, 5, 10, 20, 50))
    batches = effort.choose((64, 512, 4096), (64, 256, 1024, 4096, 16384, 65536))
    return {
        "K": _losses([(batch, k, 10) for k in n_components], ours, seconds),
        "b": _losses([(b, 5, 10) for b in batches], ours, seconds),
    }


def _losses(sizes: Iterable[Size], ours: dict[str, Contender], seconds: float) -> list[Row]:
    rows = []
    for size in sizes:
        problem, contenders = Problem(*size), dict(ours)
        batch, n_components, dimensions = size
        # Peers keep a dozen dense copies: what would not fit is left out.
        if batch * n_components * dimensions**2 < 6e7:
            contenders |= PEERS
        rows.append(_together(problem, contenders, seconds) | _sizes(size))
        _tell(rows[-1])
    return rows


def _together(problem: Problem, contenders: dict[str, Contender], seconds: float) -> Row:
    jobs = {name: problem.job(contender) for name, contender in contenders.items()}
    return best_times(jobs | {"copy": problem.copy()}, seconds)


def diagonal(effort: Effort) -> list[Row]:
    """Measure loss and gradients of mixtures with diagonal covariances, K = 5."""
    rows = []
    for batch in (256, 4096):
        for dimensions in effort.choose((10,), (2, 10, 50)):
            problem = Problem(batch, 5, dimensions, diagonal=True)
            row = _together(problem, DIAGONAL, effort.choose(0.7, 4.0))
            rows.append(row | _sizes((batch, 5, dimensions)))
            _tell(rows[-1])
    return rows


def step(effort: Effort) -> list[Row]:
    """Measure a training step: b = 256, K = 10, MLP 10-128-128, fused Adam for all."""
    rows = []
    for dimensions in effort.choose((2, 10), (2, 10, 30)):
        condition, target = torch.randn(256, 10), torch.randn(256, dimensions)

        def job(loss: Callable[[Network], Tensor], size: int = dimensions) -> Job:
            network = Network(10, size)
            # So slow that nobody's loss leaves the start: all do the same work all the time.
            adam = torch.optim.Adam(network.parameters(), lr=1e-9, fused=True)

            def step() -> None:
                adam.zero_grad()
                loss(network).backward()
                adam.step()

            return step

        jobs = {"condens chunked": job(lambda n, c=condition, t=target: n.chunked_loss(c, t))}
        jobs |= {
            name: job(lambda n, f=contender, c=condition, t=target: n.loss(f, c, t))
            for name, contender in (OURS | PEERS).items()
        }
        jobs["GEMM floor"] = job(lambda n, c=condition: n.floor(c))
        rows.append(best_times(jobs, effort.choose(1.5, 5.0)) | {"D": dimensions})
        _tell(rows[-1])
    return rows


def sample(effort: Effort) -> list[Row]:
    """Measure 10⁶ draws: 1000 conditions, 1000 each, K = 10."""
    rows = []
    for dimensions in effort.choose((2, 10), (2, 10, 30)):
        parameters = Problem(1000, 10, dimensions).parameters
        jobs: dict[str, Job] = {
            name: lambda f=f, p=parameters: f(*p, 1000)
            for name, f in SAMPLERS.items()
            # torch and zuko expand a factor for every draw: minutes, and gigabytes.
            if name in ("condens", "sbi") or dimensions < effort.choose(10, 30)
        }
        jobs["randn"] = lambda d=dimensions: torch.randn(1000, 1000, d)
        with torch.no_grad():
            rows.append(best_times(jobs, 5.0, rounds=2) | {"D": dimensions})
        _tell(rows[-1])
    return rows


def bandwidth(effort: Effort) -> list[Row]:
    """Measure the kernel alone and the differentiated call beside copies, b = 4096.

    `copy` is of the parameters' size, `large copy` of 256 MB: beyond the caches.
    """
    source = torch.randn(64_000_000)
    large = torch.empty_like(source)
    rows = []
    for n_components in effort.choose((5,), (5, 20)):
        for dimensions in effort.choose((5, 10), (5, 10, 20)):
            size = (4096, n_components, dimensions)
            problem = Problem(*size)
            jobs: dict[str, Job] = {
                "large copy": lambda: large.copy_(source),
                "copy": problem.copy(),
                "call": problem.job(OURS["condens"]),
                "call batch-last": problem.job(OURS["condens batch-last"]),
            }
            if not native.missing:
                jobs["kernel"] = _kernel(problem, batch_last=False)
                jobs["kernel batch-last"] = _kernel(problem, batch_last=True)
            row = best_times(jobs, effort.choose(1.5, 5.0))
            rows.append(row | _sizes(size) | {"bytes": problem.bytes, "large": source.nbytes})
            _tell(rows[-1])
    return rows


def _kernel(problem: Problem, *, batch_last: bool) -> Job:
    """Return a call of the native kernel, without autograd."""
    inputs = (problem.target, *problem.laid_out(batch_last=batch_last))
    return lambda: native.total(inputs, weights=None, to_target=False)


def peak_memory(effort: Effort) -> dict[str, list[Any]]:
    """Measure the memory of loss and gradients, and of a linear head with its loss."""
    if not memory.available():
        print("memory is left out: this system does not count resident pages")
        return {}
    names = effort.choose(("condens", "condens eager", "FrEIA", "torch tril"), (*OURS, *PEERS))
    sizes = effort.choose(((4096, 5, 10),), ((4096, 5, 10), (4096, 5, 20), (1024, 10, 30)))
    heads = [(b, 10, 30) for b in effort.choose((4096,), (4096, 16384))]
    return {
        "known": memory.check(),
        "loss": [_memory("loss", n, s, (), effort) for s in sizes for n in names],
        "head": [
            _memory("head", n, s, (128,), effort) for s in heads for n in ("chunked", "unchunked")
        ],
    }


def _memory(
    kind: str, name: str, size: Size, more: tuple[int, ...], effort: Effort
) -> dict[str, Any]:
    row = memory.measure(kind, name, *size, *more, threads=effort.threads)
    print(kind, name, size, row, flush=True)
    return {"name": name} | _sizes(size) | row


def _sizes(size: Size) -> Row:
    return dict(zip("bKD", size, strict=True))


def _tell(row: Row) -> None:
    print(json.dumps({k: float(f"{v:.4g}") for k, v in row.items()}), flush=True)


TABLES: dict[str, Callable[[Effort], Any]] = {
    "loss": loss,
    "step": step,
    "sample": sample,
    "memory": peak_memory,
    "growth": growth,
    "bandwidth": bandwidth,
    "diagonal": diagonal,
}
