"""The server: `run` binds a port, prints the address, and answers until it is told to stop."""

import asyncio
import contextlib
import ipaddress
import os
import secrets
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from condens.data.table import TableLike
from condens.errors import ArgumentError
from condens.estimator.regressor import MDNRegressor
from condens.explorer.app import RAW_HEADERS, Access, Application, make_app
from condens.explorer.engine import Engine
from condens.explorer.views import Subject
from condens.loading import load
from condens.scalars import as_whole

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

# Seconds in which the head of a request has to arrive, and that an idle connection is kept.
HEAD_SECONDS, IDLE_SECONDS = 10.0, 15
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 32 * 1024
# Seconds that requests have to end in after SIGTERM.
DRAIN_SECONDS = 15
MIN_TOKEN = 16


class Protocol(H11Protocol):
    """HTTP with a limit on connections and on the time that the head of a request takes.

    uvicorn closes connections that are idle after a response, but waits for ever for a first
    request, or for one that comes byte by byte.
    """

    _head: "TimerHandle | None" = None

    def connection_made(self, transport: "Transport") -> None:  # type: ignore[override]
        """Start the clock, or close one connection too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read, and see whether a head is still to come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the clock again: what came with the last request may be half of the next."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer what is no HTTP, with the headers of every response."""
        headers = [
            (b"content-type", b"application/json"),
            (b"connection", b"close"),
            *RAW_HEADERS,
        ]
        body = b'{"error":{"code":"not_http","message":"The request is no valid HTTP."}}'
        with contextlib.suppress(h11.LocalProtocolError):
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Run the clock while the head of a request is to come, and at no other time."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _too_slow(self) -> None:
        self._head = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


@dataclass(frozen=True)
class Service:
    """A server that has its port, and answers once `serve` is called.

    Args:
        app: what answers.
        engine: its pool.
        listener: the bound socket.
        address: where a browser or a program finds it, without the token.
        token: that lets either in.
    """

    app: Application
    engine: Engine
    listener: socket.socket
    address: str
    token: str
    server: uvicorn.Server

    @property
    def url(self) -> str:
        """The address with the token, for a browser."""
        return f"{self.address}/?token={self.token}"

    def serve(self) -> None:
        """Answer until SIGTERM or Ctrl-C; requests that have begun are ended first."""
        try:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(self.server.serve(sockets=[self.listener]))
        finally:
            self.engine.close()
            self.listener.close()

    def stop(self) -> None:
        """Let `serve` in another thread end."""
        self.server.should_exit = True


def run(
    model: MDNRegressor | str | os.PathLike[str],
    *,
    data: TableLike | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    page: bool = True,
    token: str | None = None,
    allow_remote: bool = False,
    allow_hosts: Sequence[str] = (),
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    behind_proxy: bool = False,
    open_browser: bool = False,
) -> None:
    """Answer what a model predicts, by a page and a JSON API, until Ctrl-C or SIGTERM.

    The address is written to stderr. Only programs on this machine that know its token are
    answered, unless the arguments say otherwise.

    Args:
        model: fitted, or the path of its file.
        data: a frame with the conditions and the targets of the model, whose rows are shown near
            a condition, and by which the report judges the model: rows that were not used in
            `fit`.
        host: the address to listen at.
        port: 0 for any that is free.
        page: False for the API alone.
        token: at least 16 characters; by default a new one.
        allow_remote: let other machines in, which also needs `allow_hosts` and either `tls` or
            `behind_proxy`.
        allow_hosts: names by which the server is reached, such as "models.example.org".
        tls: the files of the certificate and of its key.
        behind_proxy: a proxy before this server speaks https with the browsers.
        open_browser: open the page.
    """
    service = prepare(
        model,
        data=data,
        host=host,
        port=port,
        page=page,
        token=token,
        allow_remote=allow_remote,
        allow_hosts=allow_hosts,
        tls=tls,
        behind_proxy=behind_proxy,
    )
    _announce(service, page=page, remote=not _is_loopback(host), proxy=behind_proxy)
    with contextlib.ExitStack() as stack:
        if open_browser and page:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="condens-")))
            _open(service, place / "open.html")
        service.serve()


def prepare(
    model: MDNRegressor | str | os.PathLike[str],
    *,
    data: TableLike | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    page: bool = True,
    token: str | None = None,
    allow_remote: bool = False,
    allow_hosts: Sequence[str] = (),
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    behind_proxy: bool = False,
) -> Service:
    """Return a server that is bound but not yet answering; the arguments are those of `run`."""
    _check_exposure(host, allow_remote, allow_hosts, tls is not None or behind_proxy)
    if token is not None and (not isinstance(token, str) or len(token) < MIN_TOKEN):
        raise ArgumentError(
            "token",
            got="is short",
            expected=f"at least {MIN_TOKEN} characters were expected",
            fix="Leave it out: a new one is drawn.",
        )
    subject = _subject(model, data)
    listener = _bind(host, as_whole("port", port, 0, 65535, fix="Pass 0 for any that is free."))
    bound = listener.getsockname()[1]
    scheme = "http" if tls is None else "https"
    outer = "https" if behind_proxy else scheme
    loopback = [f"{name}:{bound}" for name in ("127.0.0.1", "localhost", "[::1]")]
    named = [name.lower() for host in allow_hosts for name in (host, f"{host}:{bound}")]
    access = Access(
        token or secrets.token_urlsafe(32),
        frozenset([*loopback, *named]),
        frozenset(
            [*(f"{scheme}://{name}" for name in loopback), *(f"{outer}://{name}" for name in named)]
        ),
        secure=outer == "https",
    )
    engine = Engine(subject)
    app = make_app(engine, access, page=page)
    options: dict[str, Any] = {}
    if tls is not None:
        options = {"ssl_certfile": os.fspath(tls[0]), "ssl_keyfile": os.fspath(tls[1])}
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        **options,
    )
    try:
        config.load()
    except OSError as error:
        listener.close()
        raise ArgumentError(
            "tls",
            got=f"cannot be read ({error})",
            expected="the files of a certificate and its key were expected",
            fix="Pass (certificate, key).",
        ) from None
    outside = allow_hosts and (behind_proxy or not _is_loopback(host))
    address = (
        f"{outer}://{allow_hosts[0]}" if outside else f"{scheme}://{_shown_host(host)}:{bound}"
    )
    if outside and not behind_proxy and ":" not in allow_hosts[0]:
        address = f"{address}:{bound}"
    return Service(app, engine, listener, address, access.token, uvicorn.Server(config))


def _subject(model: MDNRegressor | str | os.PathLike[str], data: TableLike | None) -> Subject:
    """Return a model, loaded if it is a path, with its data."""
    name = "model.condens"
    if isinstance(model, str | os.PathLike):
        name, found = Path(model).name, load(model)
    else:
        found = model
    if not isinstance(found, MDNRegressor) or not found.__sklearn_is_fitted__():
        raise ArgumentError(
            "model",
            got=f"is {'not fitted' if isinstance(found, MDNRegressor) else type(found).__name__}",
            expected="a fitted MDNRegressor, or the path of its file, was expected",
            fix="Fit one, and save it.",
        )
    return Subject.of(found, name, data)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _check_exposure(host: str, allow_remote: bool, allow_hosts: Sequence[str], safe: bool) -> None:
    """Refuse to answer other machines unless that was said, with all that it takes."""
    if isinstance(allow_hosts, str) or not all(
        isinstance(name, str) and name and name.isascii() and "/" not in name
        for name in allow_hosts
    ):
        raise ArgumentError(
            "allow_hosts",
            got=f"is {allow_hosts!r}",
            expected="a list of names was expected",
            fix='Pass ["models.example.org"], for instance.',
        )
    if _is_loopback(host):
        return
    needed = (
        (allow_remote, "allow_remote=True: other machines will be answered"),
        (safe, "tls=(certificate, key), or behind_proxy=True if a proxy speaks https for it"),
        (bool(allow_hosts), "allow_hosts: the names by which browsers will reach it"),
    )
    missing = [words for there, words in needed if not there]
    if missing:
        raise ArgumentError(
            "host",
            got=f"is {host!r}, which other machines can reach",
            expected=f"that needs {'; '.join(missing)}",
            fix="Add that, or leave host out.",
        )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once, and not 40 ms later, only where TCP is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ArgumentError(
            "host and port",
            got=f"are {host}:{port}, which cannot be had ({error.strerror})",
            expected="a free address of this machine was expected",
            fix="Pass another port, or 0 for any.",
        ) from None
    return listener


def _shown_host(host: str) -> str:
    return f"[{host.strip('[]')}]" if ":" in host else host


def _announce(service: Service, *, page: bool, remote: bool, proxy: bool) -> None:
    """Say where the server is, and who can reach it."""
    if page:
        lines = [f"The explorer is at {service.url}"]
    else:
        lines = [f"The API is at {service.address}", f"Token: {service.token}"]
    if remote or proxy:
        lines.append(
            "Other machines can reach this server. Whoever has the token can ask the model "
            "anything, and sees the rows of --data."
        )
    else:
        lines.append("Only this machine can reach it, and only with this token.")
    lines.append("Stop it with Ctrl-C.")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _open(service: Service, path: Path) -> None:
    """Open a browser by way of a private file: other users can read what commands are run with."""
    target = escape(service.url, quote=True)
    path.write_text(
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0;url={target}"><title>condens</title>'
    )
    path.chmod(0o600)
    timer = threading.Timer(0.5, webbrowser.open, [path.as_uri()])
    timer.daemon = True
    timer.start()
