"""A PostgreSQL server of its own for a test: on loopback, at a free port, in a new directory."""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager

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


def _unprivileged(directory):
    """Return how to run a command as a user that PostgreSQL accepts, owner of the directory."""
    if os.geteuid():
        return []
    import pwd

    setpriv = shutil.which("setpriv")
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in OTHER_USERS if name in names), None)
    if setpriv is None or user is None:
        pytest.skip("PostgreSQL refuses to run as root, and no other user can be had here")
    entry = pwd.getpwnam(user)
    os.chown(directory, entry.pw_uid, entry.pw_gid)
    return [setpriv, f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


@contextmanager
def server(directory):
    """Run a server and return its host and port; the user is `USER`, with `PASSWORD`."""
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    directory.mkdir(mode=0o700)
    secret = directory.parent / "postgres-password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    as_user = _unprivileged(directory)
    for parent in directory.parents:  # the other user has to get there
        if parent.stat().st_uid == os.geteuid() and as_user and parent.name:
            parent.chmod(parent.stat().st_mode | 0o711)
    data = directory / "data"

    def run(*command):
        done = subprocess.run(
            [*as_user, *map(str, command)], capture_output=True, text=True, cwd=directory
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(
        *(initdb, "-D", data, "-U", USER, "--pwfile", secret, "-A", "scram-sha-256"),
        *("--no-sync", "-E", "UTF8", "--locale=C"),
    )
    port = _free_port()
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -F"
    run(pg_ctl, "-D", data, "-l", directory / "log", "-w", "-o", options, "start")
    try:
        yield "127.0.0.1", port
    finally:
        run(pg_ctl, "-D", data, "-m", "immediate", "stop")
