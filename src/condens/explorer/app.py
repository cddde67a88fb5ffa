"""The web application: routes, and the guard that every request passes first."""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Route

from condens.errors import CondensError
from condens.explorer.engine import RETRY_AFTER, Engine
from condens.explorer.schema import (
    MAX_BODY_BYTES,
    RequestError,
    check,
    openapi,
    read_json,
    shown,
)
from condens.explorer.views import describe

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LOG = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Seconds in which a body has to arrive, and a whole response to be taken.
BODY_SECONDS, RESPONSE_SECONDS = 10.0, 150.0
# What is still read of a refused body, so that the sender sees the refusal before the end.
DRAIN_BYTES, DRAIN_SECONDS = 16 * 2**20, 2.0

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# The report runs no script, and is shown in a frame of the page.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'; sandbox"
    ),
    "X-Frame-Options": "SAMEORIGIN",
}


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Args:
        token: of the printed address, and of programs.
        hosts: that requests may be addressed to, with their ports.
        origins: of pages that may ask.
        secure: whether browsers reach the server by https.
    """

    token: str
    hosts: frozenset[str]
    origins: frozenset[str]
    secure: bool = False
    # Cookies are shared by all ports of a host: explorers side by side need names of their own.
    cookie: str = field(default_factory=lambda: f"condens-{secrets.token_hex(6)}")
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request has the token or the cookie."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(token.strip())
        given = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        return _same(given, self.session)

    def is_token(self, given: str) -> bool:
        """Compare in constant time."""
        return _same(given, self.token)

    @property
    def set_cookie(self) -> str:
        """The cookie that a browser gets for the token."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/{secure}"


def _same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8"))


def make_app(engine: Engine, access: Access, *, page: bool = True) -> Application:
    """Return the application: the API, and the page unless it is left out."""
    routes = Routes(engine)
    found = [
        Route("/healthz", routes.health),
        Route("/openapi.json", routes.openapi),
        *(
            Route(f"/api/{kind}", routes.ask(kind), methods=["POST"])
            for kind in ("density", "sample", "query", "python")
        ),
    ]
    if page:
        found += [
            Route("/", routes.file("index.html")),
            Route("/api/model", routes.model),
            Route("/report", routes.report),
            *(
                Route(f"/static/{file.name}", routes.file(file.name))
                for file in sorted(STATIC.iterdir())
                if file.suffix in TYPES and file.suffix != ".html"
            ),
        ]
    app = Starlette(
        routes=found,
        exception_handlers={
            HTTPException: _http_error,
            CondensError: _condens_error,
            Exception: _any_error,
        },
    )
    return Guard(app, access)


class Routes:
    """The answers to requests that have passed the guard."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.subject = engine, engine.subject
        requests = self.subject.requests
        self.schemas = {
            "density": requests.density,
            "sample": requests.sample,
            "query": requests.query,
            "python": requests.density,
        }
        self.document = json.dumps(openapi(requests)).encode("ascii")
        self.description = json.dumps(describe(self.subject), allow_nan=False).encode("ascii")

    async def health(self, _: Request) -> Response:
        """Answer without the pool, so also under load."""
        return _json(b'{"status":"ok"}')

    async def openapi(self, _: Request) -> Response:
        """Describe the API."""
        return _json(self.document)

    async def model(self, _: Request) -> Response:
        """Describe the model."""
        return _json(self.description)

    async def report(self, _: Request) -> Response:
        """Judge the model by the data."""
        text = await self.engine.report()
        return Response(text, media_type="text/html", headers=REPORT_HEADERS)

    def ask(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers one kind of request."""

        async def answer(request: Request) -> Response:
            if request.headers.get("content-type", "").partition(";")[0].strip() != (
                "application/json"
            ):
                raise RequestError(
                    "the content type",
                    status=415,
                    code="not_json",
                    got=f"is {shown(request.headers.get('content-type', 'missing'))}",
                    expected="application/json was expected",
                    fix="Send JSON, and that header.",
                )
            asked = check(read_json(await request.body()), self.schemas[kind])
            return _json(await self.engine.ask(kind, asked))

        return answer

    def file(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """Return what sends a file of the page; no path comes from the request."""
        path = STATIC / name
        content, kind = path.read_bytes(), TYPES[path.suffix]

        async def send(_: Request) -> Response:
            return Response(content, headers={"Content-Type": kind})

        return send


class Guard:
    """Checks host, origin and token, bounds bodies, and adds headers to every response."""

    def __init__(self, app: Application, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request; no error leaves this function as a traceback."""
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((n, v) for n, v in RAW_HEADERS if n not in present),
                ]
            await send(message)

        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                try:
                    response = self._refusal(scope)
                    if response is None:
                        body = await _read_body(receive)
                        await self.app(scope, _replay(body, receive), guarded)
                        return
                except CondensError as error:
                    response = error_response(error)
                await _respond(response, receive, guarded)
        except (ConnectionError, TimeoutError):
            # The sender has gone, or does not take the response: the connection is closed.
            return
        except Exception:
            LOG.exception("a request failed")
            if not started:
                await _respond(_internal(), receive, guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> Response | None:
        """Return what a request gets that may not pass, or a new cookie; None if it may."""
        pairs = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
        headers, access = dict(pairs), self.access
        hosts = [value.lower() for name, value in pairs if name == "host"]
        if len(hosts) != 1 or hosts[0] not in access.hosts:
            raise _refuse(421, "wrong_host", "the Host header", shown(", ".join(hosts)))
        if "origin" in headers and headers["origin"].lower() not in access.origins:
            raise _refuse(403, "wrong_origin", "the Origin header", shown(headers["origin"]))
        path, site = scope["path"], headers.get("sec-fetch-site", "none")
        if path != "/" and site not in ("none", "same-origin"):
            raise _refuse(403, "wrong_origin", "the request", f"from a page of another {site}")
        if path == "/healthz":
            return None
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if path == "/" and scope["method"] == "GET" and tokens:
            if len(tokens) == 1 and access.is_token(tokens[0]):
                return Response(
                    status_code=303, headers={"Location": "/", "Set-Cookie": access.set_cookie}
                )
            return _unknown_visitor(False)
        if access.knows(headers):
            return None
        if path == "/" and scope["method"] == "GET":
            # From a link elsewhere, browsers keep a strict cookie back: it comes with a reload.
            return _unknown_visitor(site not in ("none", "same-origin"))
        raise RequestError(
            "the token",
            status=401,
            code="no_token",
            got="is missing or wrong",
            expected="the token of the printed address was expected",
            fix="Send it in the header: Authorization: Bearer …",
        )


# Bodies.


async def _read_body(receive: Receive) -> bytes:
    """Return the whole body; refuse one that is too long, as it comes, or too slow."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ConnectionError("the sender has gone")
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise RequestError(
                        "the body",
                        status=413,
                        code="too_long",
                        got=f"has more than {MAX_BODY_BYTES} bytes",
                        expected="less was expected",
                        fix="Ask less at a time.",
                    )
                if not message.get("more_body", False):
                    return body
    except TimeoutError:
        raise RequestError(
            "the body",
            status=408,
            code="too_slow",
            got=f"took more than {BODY_SECONDS:g} s",
            expected="all of it was expected by then",
            fix="Send it at once.",
        ) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read, and then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _respond(response: Response, receive: Receive, send: Send) -> None:
    """Send a whole response; after a refusal read on for a while, then close the connection."""
    refused = response.status_code >= 400
    headers = [*response.raw_headers, *([(b"connection", b"close")] if refused else [])]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(response.body), "more_body": refused})
    if not refused:
        return
    if response.status_code == 413:
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0:
                    message = await receive()
                    if not message.get("more_body", False):
                        break
                    left -= len(message.get("body", b""))
        except TimeoutError:
            pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# Responses.


def _json(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


def error_response(error: CondensError) -> Response:
    """Return an error as JSON: a code for programs, the field, and a message for people."""
    known = error if isinstance(error, RequestError) else None
    status = 422 if known is None else known.status
    document = {
        "error": {
            "code": "invalid" if known is None else known.code,
            "field": None if known is None else known.field,
            "message": str(error),
        }
    }
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return _json(json.dumps(document).encode("ascii"), status, headers)


def _internal() -> Response:
    text = "The server failed; its log says why. The request may be asked again."
    return _json(json.dumps({"error": {"code": "internal", "message": text}}).encode(), 500)


async def _condens_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, CondensError)
    return error_response(error)


async def _any_error(_: Request, error: Exception) -> Response:  # noqa: ARG001  (the guard logs it)
    return _internal()


async def _http_error(_: Request, error: Exception) -> Response:
    """Answer what no route does: 404 and 405."""
    assert isinstance(error, HTTPException)
    words = {404: "There is nothing at this address.", 405: "This address takes another method."}
    text = words.get(error.status_code, "The request cannot be answered.")
    document = {"error": {"code": "no_route", "message": f"{text} See /openapi.json."}}
    return _json(json.dumps(document).encode(), error.status_code, error.headers)


def _refuse(status: int, code: str, subject: str, got: str) -> RequestError:
    return RequestError(
        subject,
        status=status,
        code=code,
        got=f"is {got or 'missing'}",
        expected="this server answers to the address it printed",
        fix="Use that address, or name another by --allow-host.",
    )


def _unknown_visitor(reload: bool) -> Response:
    """Return the page for browsers without the cookie."""
    again = '<meta http-equiv="refresh" content="0">' if reload else ""
    words = (
        "Open the address that condens printed when it started: it holds the token that lets "
        "this browser in."
    )
    return Response(
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>condens explorer</title></head>\n<body><main><h1>Not signed in</h1>"
        f"<p>{escape(words)}</p></main></body>\n</html>\n",
        401,
        media_type="text/html",
    )


def _raw(headers: Mapping[str, str]) -> Iterable[tuple[bytes, bytes]]:
    return ((name.lower().encode(), value.encode()) for name, value in headers.items())


RAW_HEADERS = tuple(_raw(HEADERS))
