"""Model files taken apart and put together by hand, without the code under test."""

import hashlib
import json
import struct

import numpy as np
import torch
from torch import nn

from condens.nn import Ensemble, FullHead, MixtureNetwork

KINDS = {"F64": "float64", "F32": "float32", "I64": "int64", "BOOL": "bool"}


def small(**options):
    """Return a network whose file is a few kilobytes."""
    options = {"n_components": 2, "width": 4, "names": ["lat", "größe"], "floor": 1e-5, **options}
    return prepared(MixtureNetwork.of(3, 2, **options))


def prepared(network, columns=3):
    """Give a network scales, and components, that are not those it began with."""
    generator = torch.Generator().manual_seed(3)
    x = 5 + 3 * torch.randn(50, columns, generator=generator)
    y = 7 - 0.1 * torch.randn(50, network.dimensions, generator=generator)
    network.prepare(x, y)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


class Convolution(nn.Module):
    """A backbone that condens does not know, with whole numbers and truth values in its state."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(4, 5)
        )
        self.again = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.again.weight
        self.register_buffer("mask", torch.tensor([True, False, True, True, True]))
        self.register_buffer("constant", torch.tensor(2.0), persistent=False)

    def forward(self, x):
        x = self.layers(x.unsqueeze(1)) * self.mask
        return self.constant * torch.tanh(self.tied(self.again(x)))


def custom(**options):
    """Return a network with a backbone that condens does not know."""
    return prepared(
        MixtureNetwork(Convolution(), FullHead(5, 2, 3), condition_columns=3, **options)
    )


def ensemble(make=small, count=2, **options):
    return prepared(Ensemble([make(**options) for _ in range(count)]))


def predictions(network, rows=20):
    """Return the bytes of everything a network predicts."""
    generator = torch.Generator().manual_seed(9)
    x = 5 + 3 * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    y = 7 + torch.randn(rows, network.dimensions, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        mixture = network(x)
        parts = [mixture.log_prob(y), mixture.mean, mixture.covariance_matrix, mixture.logits]
        parts.append(network.loss(x, y).double())
    return mixture.names, [part.contiguous().numpy().tobytes() for part in parts]


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def split(data):
    """Return the record of condens, the tensors' entries and the bytes they lie in."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    return json.loads(metadata["condens"]), header, data[8 + length :]


def arrays(data):
    """Return the record, and the tensors as arrays."""
    record, header, content = split(data)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(content[begin:end], KINDS[entry["dtype"]])
        found[name] = array.reshape(entry["shape"]).copy()
    return record, found


def raw(header, content=b""):
    """Return a file of any header: a text, or what becomes one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def sealed(record, tensors):
    """Return a file whose hash is right, whatever it holds."""
    names = {kind: name for name, kind in KINDS.items()}
    record = {name: value for name, value in record.items() if name != "sha256"}
    digest = hashlib.sha256(canonical(record).encode())
    header, content = {}, b""
    for name, array in sorted(tensors.items()):
        kind = str(array.dtype)
        digest.update(canonical([name, f"torch.{kind}", list(array.shape)]).encode())
        digest.update(array.tobytes())
        offsets = [len(content), len(content) + array.nbytes]
        entry = {"dtype": names[kind], "shape": list(array.shape), "data_offsets": offsets}
        header[name], content = entry, content + array.tobytes()
    record["sha256"] = digest.hexdigest()
    return raw({"__metadata__": {"condens": canonical(record)}, **header}, content)
