"""A PostgreSQL server of its own for a test: on loopback, at a free port, in a new directory."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "s3cr%t/p@ss:w{o}rd"
USER = "condens"
# The server refuses to run as root; one of these does instead.
OTHER_USERS = ("postgres", "nobody")


def _program(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"PostgreSQL is not installed here: there is no {name}")
    return os.path.realpath(found)


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _unprivileged(*paths):
    """Return how to run a command as a user that PostgreSQL accepts, and give it these paths."""
    if os.geteuid():
        return []
    import pwd

    setpriv = shutil.which("setpriv")
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in OTHER_USERS if name in names), None)
    if setpriv is None or user is None:
        pytest.skip("PostgreSQL refuses to run as root, and no other user can be had here")
    entry = pwd.getpwnam(user)
    for path in paths:
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return [setpriv, f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


@contextmanager
def server():
    """Run a server and return its host and port; the user is `USER`, with `PASSWORD`."""
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    # Not in a directory of pytest, which belongs to one user alone.
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "password").write_text(PASSWORD)
        as_user = _unprivileged(directory, directory / "password")
        data = directory / "data"

        def run(*command):
            done = subprocess.run(
                [*as_user, *map(str, command)], capture_output=True, text=True, cwd=directory
            )
            assert done.returncode == 0, done.stdout + done.stderr

        run(
            *(initdb, "-D", data, "-U", USER, "--pwfile", directory / "password"),
            *("-A", "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"),
        )
        port = _free_port()
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -F"
        run(pg_ctl, "-D", data, "-l", directory / "log", "-w", "-o", options, "start")
        try:
            yield "127.0.0.1", port
        finally:
            run(pg_ctl, "-D", data, "-m", "immediate", "stop")
