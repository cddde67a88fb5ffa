"""A small model with hostile names behind a running explorer, and clients that speak raw HTTP."""

import contextlib
import json
import socket
import threading

import numpy as np
import pandas as pd
from helpers.regressors import regressor

from condens.explorer.server import prepare
from condens.training import Settings

# Names are data: these would be a script, a formula, and text written from right to left.
SCRIPT = "<img src=x onerror=alert(1)>"
FORMULA = "=HYPERLINK(0)"
TURNED = "\u202egnp.exe"

RNG = np.random.default_rng(5)
N = 400
NUMBER = RNG.normal(size=N)
CONDITIONS = pd.DataFrame(
    {
        "number": NUMBER,
        SCRIPT: np.where(RNG.random(N) < 0.1, np.nan, RNG.normal(size=N)),
        "town": pd.Categorical(RNG.choice(["Bern", "</select>", "Łódź"], N)),
    }
)
NOISE = RNG.normal(size=(N, 3))
TARGETS = pd.DataFrame(
    {
        "price": 3 * NUMBER + 0.5 * NOISE[:, 0],
        FORMULA: -NUMBER + NOISE[:, 0] + 0.5 * NOISE[:, 1],
        TURNED: np.exp(0.3 * NOISE[:, 2]),
    }
)
DATA = pd.concat([CONDITIONS, TARGETS], axis=1)
CONDITION = {"number": 0.4, SCRIPT: None, "town": "Bern"}
TOKEN = "a-token-of-the-tests-only"


def fitted(**options):
    """Return a model of all kinds of columns, one of them positive."""
    return regressor(
        3,
        width=16,
        target_transform=[None, None, "positive"],
        settings=Settings(epochs=15, learning_rate=0.01),
        calibration_fraction=0.1,
        **options,
    ).fit(CONDITIONS, TARGETS)


@contextlib.contextmanager
def serving(model, **options):
    """Run a server in a thread."""
    service = prepare(model, token=TOKEN, **options)
    thread = threading.Thread(target=service.serve)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(30)
        assert not thread.is_alive()


def port_of(service):
    return service.listener.getsockname()[1]


class Answer:
    """The parts of a response."""

    def __init__(self, data):
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        pairs = (line.partition(": ") for line in lines[1:])
        self.headers = {name.lower(): value for name, _, value in pairs}

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]


def connect(service, timeout=20):
    return socket.create_connection(("127.0.0.1", port_of(service)), timeout)


def receive(connection):
    """Return all that comes until the server closes, or an empty answer."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return Answer(b"".join(parts))


def exchange(service, data):
    """Send bytes and return the answer."""
    with connect(service) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        return receive(connection)


def head(service, method, path, length=None, **headers):
    """Return the head of a request; headers that are None are left out."""
    given = {
        "Host": f"127.0.0.1:{port_of(service)}",
        "Authorization": f"Bearer {TOKEN}",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": length,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def get(service, path, **headers):
    return exchange(service, head(service, "GET", path, **headers))


def post(service, path, body, **headers):
    """Send a JSON value, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return exchange(service, head(service, "POST", path, len(data), **headers) + data)
