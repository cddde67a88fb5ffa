"""Several processes that train as one, started by a fork server, and shards for them to read.

What torchrun does around them is tested with torchrun itself, which takes seconds to start.
"""

import hashlib
import json
import os
import socket
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from helpers import runs

from condens.nn import Ensemble, FullHead, MixtureNetwork
from condens.training import train

TARGETS = ["u", "v"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def together(folder, size, task, *arguments, environment=None):
    """Run a task in several processes to its end; return what each wrote, and the exit codes."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                runs.process(_run, rank, size, port, folder, environment or {}, task, arguments)
            )
            for rank in range(size)
        ]
        for one in started:
            one.join(runs.PATIENCE)
        codes = [one.exitcode for one in started]
    files = [folder / f"{rank}.json" for rank in range(size)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files], codes


def _run(rank, size, port, folder, environment, task, arguments):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environment}
    part = folder / f"{rank}.part"
    try:
        found = task(*arguments)
    except Exception as error:
        found = {"error": type(error).__name__, "message": str(error)}
    part.write_text(json.dumps(found))
    part.rename(folder / f"{rank}.json")


def outcome(network, history):
    weights = b"".join(t.contiguous().numpy().tobytes() for t in network.state_dict().values())
    return {
        "curve": [[epoch.train_nll, epoch.validation_nll] for epoch in history.epochs],
        "weights": hashlib.sha256(weights).hexdigest(),
        "stopped": history.stopped,
        "rows": history.rows,
    }


def in_memory(members=1, changes=None, options=None, directory=None, network=None):
    """Train on rows in memory."""
    made = [runs.network(seed, **(network or {})) for seed in range(members)]
    trained = made[0] if members == 1 else Ensemble(made)
    history = train(
        trained,
        **runs.problem(**{"rows": 600, **(options or {})}),
        settings=runs.settings(**(changes or {})),
        directory=directory,
        checkpoint_seconds=0.0,
    )
    return outcome(trained, history)


def batch_norm():
    """Train a backbone that keeps running means, of the rows that its process has seen."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()]
    trained = MixtureNetwork(torch.nn.Sequential(*layers), FullHead(8, 2, 3), condition_columns=2)
    history = train(trained, **runs.problem(rows=600), settings=runs.settings())
    return outcome(trained, history)


def other_rows():
    """Train on rows that differ between the processes."""
    return in_memory(options={"rows": 600 + int(os.environ["RANK"])})


def streamed(pattern, members=1, changes=None, directory=None, transforms=None, options=None):
    """Train on shards."""
    from condens.data import Shards
    from condens.training import Stream

    stream = Stream.open(Shards(pattern), targets=TARGETS, n_members=members, **(options or {}))
    given = None if transforms is None else transforms()
    made = [
        MixtureNetwork.of(
            stream.survey.encoder.columns,
            2,
            n_components=3,
            width=12,
            dropout=0.2,
            bins=4,
            categories=stream.survey.encoder.categories,
            transforms=given,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in range(members)
    ]
    trained = made[0] if members == 1 else Ensemble(made)
    history = train(
        trained,
        stream,
        runs.settings(**(changes or {})),
        directory=directory,
        checkpoint_seconds=0.0,
        warn=False,
    )
    return outcome(trained, history)


def counts_and_shares():
    from condens.transforms.choice import resolve

    return [resolve("count", "u"), resolve("unit", "v")]


def fitted(pattern, **parameters):
    """Fit an estimator to shards."""
    from condens import MDNRegressor

    options = {"epochs": 2, "random_state": 3, "n_members": 2, "width": 16, **parameters}
    model = MDNRegressor(**options).fit_shards(pattern, TARGETS, test_fraction=0.1)
    return outcome(model.network_, model.history_)


def table(rows=1500, *, gaps=False, town=False, counts=False, seed=0):
    """Return a table with targets u and v, and more where asked for."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    u = x[:, 0] + 0.3 * random.normal(size=rows)
    v = x[:, 1] * x[:, 2] + 0.2 * random.normal(size=rows)
    if counts:
        u, v = random.poisson(np.exp(0.5 * x[:, 0])).astype(float), 1 / (1 + np.exp(-v))
    columns = {f"x{i}": x[:, i] for i in range(3)} | {"u": u, "v": v}
    if gaps:
        for name in ("x1", "u", "v"):
            columns[name] = np.where(random.random(rows) < 0.2, np.nan, columns[name])
    made = {n: pa.array(c, from_pandas=True) for n, c in columns.items()}
    if town:
        names = np.array(["ulm", "aix", "bari"])[random.integers(3, size=rows)]
        made["town"] = pa.array(names)
    return pa.table(made)


def write_shards(folder, whole, files=3, group=170, form="parquet"):
    """Write a table as files of uneven length; return the pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = [len(whole) * i // files + (7 * i if i < files else 0) for i in range(files + 1)]
    for number, (low, high) in enumerate(pairwise(ends)):
        part, path = whole.slice(low, high - low), folder / f"part-{number:02d}.{form}"
        if form == "parquet":
            pq.write_table(part, path, row_group_size=group)
        else:
            with pa.ipc.new_file(path, part.schema) as file:
                file.write_table(part, max_chunksize=group)
    return str(folder / f"*.{form}")
