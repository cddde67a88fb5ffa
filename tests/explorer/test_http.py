"""The server under requests that are wrong, slow, huge, or too many: refused by name, and alive."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.explorers import (
    CONDITION,
    DATA,
    TOKEN,
    Answer,
    connect,
    exchange,
    fitted,
    get,
    head,
    port_of,
    post,
    receive,
    serving,
)

import condens
from condens import MDNRegressor
from condens.errors import ArgumentError
from condens.explorer import app, engine, server
from condens.explorer.server import prepare
from condens.nn import MixtureNetwork
from condens.persistence import save

QUERY = {"condition": CONDITION, "questions": [{"ask": "mean"}]}


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def service(model):
    patch = pytest.MonkeyPatch()
    patch.setattr(app, "BODY_SECONDS", 0.5)
    patch.setattr(app, "DRAIN_SECONDS", 0.5)
    patch.setattr(server, "HEAD_SECONDS", 0.5)
    with serving(model) as running:
        yield running
    patch.undo()


@pytest.fixture(autouse=True)
def _alive(request):
    """After each test the server still answers, and has said nothing about its insides."""
    yield
    if "service" in request.fixturenames:
        running = request.getfixturevalue("service")
        assert get(running, "/healthz", Authorization=None).status == 200


def refusal(answer, status, code):
    assert (answer.status, answer.code) == (status, code)
    assert b"Traceback" not in answer.body
    assert b".py" not in answer.body
    for name, value in app.HEADERS.items():
        assert answer.headers[name.lower()] == value
    assert answer.headers["connection"] == "close"


# Answers.


def test_the_api_answers(service, model):
    found = post(service, "/api/query", QUERY)
    assert (found.status, found.headers["content-type"]) == (200, "application/json")
    assert len(found.json["answers"][0]) == 3
    assert "server" not in found.headers
    assert len(post(service, "/api/sample", {"condition": CONDITION}).json["samples"]) == 3
    assert len(post(service, "/api/density", {"condition": CONDITION}).json["pairs"]) == 3
    document = get(service, "/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert get(service, "/api/model").json["name"] == "model.condens"


def test_a_connection_is_used_again(service):
    body = json.dumps(QUERY).encode()
    request = head(service, "POST", "/api/query", len(body), Connection=None) + body
    with connect(service) as connection:
        for _ in range(3):
            connection.sendall(request)
            data = b""
            while not data.endswith(b"]]}"):
                data += connection.recv(65536)
            assert data.startswith(b"HTTP/1.1 200 OK")


def test_without_a_page_there_is_the_api_alone(model):
    with serving(model, page=False) as running:
        assert get(running, "/").status == 404
        assert get(running, "/api/model").status == 404
        assert post(running, "/api/query", QUERY).status == 200


# Who may ask.


def test_the_token_becomes_a_cookie(service):
    found = get(service, f"/?token={TOKEN}", Authorization=None)
    assert (found.status, found.headers["location"]) == (303, "/")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict; Path=/" in cookie
    assert TOKEN not in cookie
    value = cookie.partition(";")[0]
    page = get(service, "/", Authorization=None, Cookie=value)
    assert page.status == 200
    assert TOKEN.encode() not in page.body
    assert get(service, "/static/explorer.js", Authorization=None, Cookie=value).status == 200
    assert get(service, "/", Authorization=None, Cookie=value + "x").status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": None},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xff"},
        {"Authorization": None, "Cookie": f"condens={TOKEN}"},
    ],
)
def test_without_the_token_nothing_is_told(service, headers):
    refusal(post(service, "/api/query", QUERY, **headers), 401, "no_token")
    assert get(service, "/", **headers).status == 401
    assert get(service, "/static/explorer.js", **headers).status == 401
    assert get(service, "/openapi.json", **headers).status == 401


def test_a_wrong_token_in_the_address(service):
    for query in ("token=wrong", "token=", f"token={TOKEN}&token={TOKEN}", f"x={TOKEN}"):
        found = get(service, f"/?{query}", Authorization=None)
        assert found.status == 401
        assert "set-cookie" not in found.headers
        assert TOKEN.encode() not in found.body


def test_a_page_elsewhere_reloads_to_bring_the_cookie(service):
    elsewhere = get(service, "/", Authorization=None, Sec_Fetch_Site="cross-site")
    assert b'http-equiv="refresh"' in elsewhere.body
    assert b"refresh" not in get(service, "/", Authorization=None).body


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", "", "[::1]"]
)
def test_another_host_is_refused(service, host):
    refusal(get(service, "/healthz", Host=host), 421, "wrong_host")


def test_localhost_is_the_same_host(service):
    assert get(service, "/healthz", Host=f"LOCALHOST:{port_of(service)}").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "file://"])
def test_another_origin_is_refused(service, origin):
    refusal(post(service, "/api/query", QUERY, Origin=origin), 403, "wrong_origin")


def test_pages_of_other_ports_are_other_sites(service):
    refusal(post(service, "/api/query", QUERY, Sec_Fetch_Site="same-site"), 403, "wrong_origin")
    ours = f"http://127.0.0.1:{port_of(service)}"
    found = post(service, "/api/query", QUERY, Origin=ours, Sec_Fetch_Site="same-origin")
    assert found.status == 200


# What is asked.


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "not_json"),
        (b"garbage", 400, "not_json"),
        (b"\x80\x04\x95.", 400, "not_json"),  # a pickle
        (b'{"condition": {"number": NaN}}', 400, "not_finite"),
        (b'{"condition": {"number": 1e400}}', 400, "not_finite"),
        (b"[" * 60_000, 400, "too_deep"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400, "too_deep"),
        (b"[]", 422, "invalid"),
        (b"{}", 422, "missing_field"),
        ({**QUERY, "path": "../../etc/passwd"}, 422, "unknown_field"),
        ({"condition": {**CONDITION, "number": "\ud800"}}, 422, "missing_field"),
        ({**QUERY, "condition": {**CONDITION, "number": "\ud800"}}, 422, "invalid"),
    ],
)
def test_wrong_bodies(service, body, status, code):
    found = post(service, "/api/query", body)
    assert (found.status, found.code) == (status, code)
    assert b"Traceback" not in found.body


def test_a_thousand_million_samples(service):
    found = post(service, "/api/sample", {"condition": CONDITION, "n_samples": 10**9})
    assert (found.status, found.json["error"]["field"]) == (422, "n_samples")


@pytest.mark.parametrize("number", [1e308, -1e308, 1e-320])
def test_numbers_at_the_edge_of_all_numbers(service, number):
    request = {"condition": {**CONDITION, "number": number}}
    assert post(service, "/api/density", request).status == 200
    given = {"condition": CONDITION, "given": {"price": number}}
    assert post(service, "/api/density", given).status in (200, 422)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "a" * 99]
)
def test_another_content_type(service, kind):
    assert post(service, "/api/query", QUERY, Content_Type=kind).code == "not_json"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/....//app.py",
        "//etc/passwd",
        "/static/explorer.js%00.css",
        "/static/",
        "/static/index.html",
        "/api/model/../../x",
    ],
)
def test_paths_lead_nowhere(service, path):
    found = get(service, path)
    assert found.status == 404
    assert b"import" not in found.body


def test_other_methods(service):
    assert get(service, "/api/query").status == 405
    assert post(service, "/healthz", QUERY).status == 405
    assert exchange(service, head(service, "TRACE", "/")).status == 405


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 100_000,
    ],
    ids=["tls", "colon", "length", "encoding", "ssh", "long path", "long header"],
)
def test_what_is_no_http(service, data):
    found = exchange(service, data)
    assert found.status in (400, 421)
    assert b"Traceback" not in found.body


def test_two_hosts(service):
    port = port_of(service)
    data = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\n\r\n".encode()
    assert exchange(service, data).status in (400, 421)


# Long, slow, many.


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_hundred_megabytes_in_chunks(service):
    start = head(service, "POST", "/api/query", Transfer_Encoding="chunked")
    chunk = b"10000\r\n" + b"[" * 65536 + b"\r\n"
    before, sent = resident(), 0
    with connect(service) as connection:
        connection.sendall(start)
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.settimeout(5)
            while sent < 100 * 2**20:
                connection.sendall(chunk)
                sent += len(chunk)
        found = receive(connection)
    assert sent < 40 * 2**20
    assert resident() - before < 50 * 2**20
    if found.status:  # else the connection was closed in our face
        refusal(found, 413, "too_long")


def test_a_body_that_is_too_long_sees_why(service):
    refusal(post(service, "/api/query", b" " * 200_000), 413, "too_long")


def test_a_slow_body(service):
    with connect(service) as connection:
        connection.sendall(head(service, "POST", "/api/query", 1000) + b"{")
        started = time.monotonic()
        refusal(receive(connection), 408, "too_slow")
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_a_slow_head(service, data):
    with connect(service) as connection:
        connection.sendall(data)
        started = time.monotonic()
        assert receive(connection).status == 0
        assert time.monotonic() - started < 3


def test_a_head_that_drips_after_a_first_request(service):
    with connect(service) as connection:
        connection.sendall(head(service, "GET", "/healthz", Connection=None))
        assert b"200 OK" in connection.recv(65536)
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in head(service, "GET", "/healthz", Connection=None):
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - started > 5:
                    break
        assert time.monotonic() - started < 3


def test_a_sender_that_goes_away(service):
    for _ in range(20):
        with connect(service) as connection:
            connection.sendall(head(service, "POST", "/api/density", 1000) + b"{")


def test_too_many_connections(service, monkeypatch):
    time.sleep(0.2)  # those of the tests before are closed by now
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connect(service)) for _ in range(6)]
        time.sleep(0.2)
        for connection in opened:
            with contextlib.suppress(ConnectionError):
                connection.sendall(head(service, "GET", "/healthz"))
        assert sorted(receive(connection).status for connection in opened) == [
            0,
            0,
            0,
            200,
            200,
            200,
        ]


async def many(service, path, body, count):
    data = json.dumps(body).encode()
    request = head(service, "POST", path, len(data)) + data

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
        writer.write(request)
        answer = Answer(await reader.read())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer

    return await asyncio.gather(*(one() for _ in range(count)))


def test_two_hundred_clients_at_once(service):
    before = service.engine.n_batches, service.engine.n_answers
    found = asyncio.run(many(service, "/api/query", QUERY, 200))
    assert [one.status for one in found] == [200] * 200
    assert len({one.body for one in found}) <= 3  # batches may round differently
    batches, answers = service.engine.n_batches - before[0], service.engine.n_answers - before[1]
    assert answers == 200
    assert batches < 150


def test_too_many_clients_are_told_when_to_come_again(service, monkeypatch):
    monkeypatch.setattr(engine, "MAX_WAITING", 24)
    slow = {"condition": CONDITION, "points": 400, "pixels": 100}
    times = []

    def health():
        for _ in range(5):
            started = time.monotonic()
            assert get(service, "/healthz").status == 200
            times.append(time.monotonic() - started)

    thread = threading.Thread(target=health)
    thread.start()
    found = asyncio.run(many(service, "/api/density", slow, 60))
    thread.join()
    assert {one.status for one in found} == {200, 503}
    refused = [one for one in found if one.status == 503]
    assert all(one.headers["retry-after"] == "1" and one.code == "busy" for one in refused)
    assert max(times) < 1


def test_a_fault_of_ours_is_told_without_a_traceback(service, monkeypatch):
    monkeypatch.setattr(engine, "answer_all", lambda *_: 1 / 0)
    monkeypatch.setattr(engine.LOG, "disabled", True)
    monkeypatch.setattr(app.LOG, "disabled", True)
    found = post(service, "/api/query", QUERY)
    assert (found.status, found.code) == (500, "internal")
    assert b"division" not in found.body


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "allow_remote=True.*tls=.*allow_hosts"),
        ({"host": "0.0.0.0", "allow_remote": True, "allow_hosts": ["a"]}, "tls="),
        ({"host": "::", "allow_remote": True, "behind_proxy": True}, "allow_hosts"),
        ({"host": "example.org"}, "other machines"),
        ({"allow_hosts": "example.org"}, "a list of names"),
        ({"allow_hosts": ["http://example.org"]}, "a list of names"),
        ({"token": "short"}, "at least 16"),
        ({"port": 70000}, "port"),
        ({"tls": ("no", "files")}, "certificate"),
        ({"data": DATA[["price"]]}, "lacks the columns"),
    ],
)
def test_arguments_that_are_refused(model, options, message):
    with pytest.raises(ArgumentError, match=message):
        prepare(model, **options)


def test_models_that_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="is not fitted"):
        prepare(MDNRegressor())
    save(MixtureNetwork.of(3, 2), tmp_path / "network.condens")
    with pytest.raises(ArgumentError, match="is MixtureNetwork"):
        prepare(tmp_path / "network.condens")


def test_a_port_that_is_taken(model, service):
    with pytest.raises(ArgumentError, match="cannot be had"):
        prepare(model, port=port_of(service))


def test_behind_a_proxy(model):
    options = {"behind_proxy": True, "allow_hosts": ["models.example.org"]}
    with serving(model, **options) as running:
        assert running.url.startswith("https://models.example.org/?token=")
        proxied = {"Host": "models.example.org", "Authorization": None}
        found = get(running, f"/?token={TOKEN}", **proxied)
        assert found.headers["set-cookie"].endswith("; Secure")
        good, bad = (
            post(
                running,
                "/api/query",
                QUERY,
                Host="models.example.org",
                Origin=f"{scheme}://models.example.org",
            )
            for scheme in ("https", "http")
        )
        assert (good.status, bad.status) == (200, 403)


# A process of its own.


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
def test_sigterm_lets_requests_end(model, tmp_path, tls):
    model.save(tmp_path / "small.condens")
    options = ""
    if tls:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem",
             "-out", "cert.pem", "-days", "1", "-subj", "/CN=localhost"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
        options = ', tls=("cert.pem", "key.pem")'
    code = f"from condens.explorer import run; run('small.condens', token={TOKEN!r}{options})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(condens.__file__).parents[1])},
    )
    try:
        line = process.stderr.readline()
        scheme = "https" if tls else "http"
        assert f" {scheme}://127.0.0.1:" in line
        address = line.split()[-1].partition("/?")[0]
        curl = [
            *("curl", "-sk", f"{address}/api/sample", "-H", f"Authorization: Bearer {TOKEN}"),
            *("-H", "Content-Type: application/json", "-d"),
            json.dumps({"condition": CONDITION, "n_samples": 10_000}),
        ]
        running = [subprocess.Popen(curl, stdout=subprocess.PIPE) for _ in range(4)]
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        answers = [one.communicate(timeout=60)[0] for one in running]
        assert process.wait(30) == 0 or process.returncode == -signal.SIGTERM
        whole = [answer for answer in answers if answer]
        assert whole
        assert all(len(json.loads(answer)["samples"]["price"]) == 10_000 for answer in whole)
        rest = process.stderr.read()
        assert TOKEN not in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.communicate()


def test_base64_is_what_the_documentation_says(service):
    request = {"condition": CONDITION, "encoding": "base64"}
    pair = post(service, "/api/density", request).json["pairs"][0]
    rows, columns = pair["shape"]
    assert len(base64.b64decode(pair["density"])) == 4 * rows * columns
