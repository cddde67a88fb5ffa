"""Where a study is kept: an SQLite file, or a server, whose password is never shown."""

import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from sqlalchemy.exc import (
    ArgumentError as UrlError,
)
from sqlalchemy.exc import (
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from condens.errors import StudyError
from condens.files import open_regular

# Seconds that a process waits for others to end their writing: each takes milliseconds.
LOCK_SECONDS = 300.0
# Processes that open a new study at once make the same tables; all but one have to try again.
MAX_OPENINGS = 20
OPENING_PAUSE = 0.25
# Of the seconds without a sign of life after which a trial is taken up again.
BEATS_A_GRACE = 4
_URL_FIX = (
    "Write it as postgresql+psycopg://user:password@host/database, with special characters of the "
    "password as %40 for @, and so on."
)


class Storage:
    """A place for studies that many processes may use at once.

    Args:
        place: the path of an SQLite file, or the URL of a server.
        grace: seconds without a sign of life after which a worker is taken for dead.
    """

    def __init__(self, place: str | os.PathLike[str], grace: int) -> None:
        text = _sqlite_path(os.fspath(place))
        self.is_server = "://" in text
        self.grace = grace
        self._secrets: list[str] = []
        self.label = "the study's server" if self.is_server else text
        if self.is_server:
            url, options = self._server(text)
        else:
            url, options = "sqlite://", _sqlite(Path(text))
        self.backend = self._open(url, options)
        if not self.is_server:
            engine = self.backend.engine
            # The driver would begin a transaction only with the first write: two processes could
            # read that a trial waits, and both take it.
            sqlalchemy.event.listen(
                engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE")
            )

    def _server(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return the URL as Optuna takes it, and options of the connection."""
        try:
            url = sqlalchemy.make_url(text)
            # With an @ of its own, the rest of a password would be read as the host, and shown.
            if text.partition("?")[0].count("@") > 1 or url.drivername.startswith("sqlite"):
                raise ValueError
            known = url.get_dialect()
        except NoSuchModuleError:
            scheme = sqlalchemy.make_url(text).drivername
            raise StudyError(
                "the URL of the study's server",
                got=f"begins with {scheme[:40]!r}",
                expected="SQLAlchemy knows no such database",
                fix="Use postgresql+psycopg://… or mysql+pymysql://…, for instance.",
            ) from None
        except (UrlError, ValueError):
            raise StudyError(
                "the URL of the study's server",
                got="cannot be read",
                expected="scheme://user:password@host:port/database was expected",
                fix=_URL_FIX,
            ) from None
        hidden = [url.password or "", *(str(value) for value in url.query.values())]
        self._secrets = [text, *filter(None, hidden)]
        self.label = url.set(query={}).render_as_string(hide_password=True)
        with self.answering():
            known.import_dbapi()
        options: dict[str, Any] = {"pool_pre_ping": True}
        return text.replace("{", "{{").replace("}", "}}"), options  # Optuna formats it

    def _open(self, url: str, options: dict[str, Any]) -> optuna.storages.RDBStorage:
        for number in range(MAX_OPENINGS):
            try:
                with warnings.catch_warnings(), self.answering(MAX_OPENINGS - number - 1):
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    return optuna.storages.RDBStorage(
                        url,
                        engine_kwargs=options,
                        heartbeat_interval=max(self.grace // BEATS_A_GRACE, 1),
                        grace_period=self.grace,
                    )
            except _Again:
                time.sleep(OPENING_PAUSE)
        raise AssertionError("the last opening raises what it meets")

    @contextmanager
    def answering(self, openings_left: int = 0) -> Iterator[None]:
        """Turn errors of the database into `StudyError`, without its password."""
        try:
            yield
        except (OperationalError, ProgrammingError, IntegrityError) as error:
            text = str(error)
            if openings_left and ("already exists" in text or isinstance(error, IntegrityError)):
                raise _Again from None
            raise self._error(error) from None
        except (SQLAlchemyError, StorageInternalError) as error:
            raise self._error(error) from None
        except ImportError as error:
            raise StudyError(
                self.label,
                got=f"needs the driver {error.name or 'of its database'}",
                expected="that is not installed",
                fix="For PostgreSQL, pip install 'psycopg[binary]' and write postgresql+psycopg://….",
            ) from None
        except RuntimeError as error:  # Optuna's, about tables of another version
            if type(error) is not RuntimeError or "schema" not in str(error):
                raise
            raise self._error(error) from None

    def _error(self, error: BaseException) -> StudyError:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        cause = getattr(cause, "orig", None) or cause or error
        reason = self.scrub(" ".join(str(cause).split()))[:300].rstrip(". ")
        return StudyError(
            self.label,
            got=f"does not answer as a study ({reason})",
            expected="trials are kept there",
            fix="Check the URL and the server; the same call goes on."
            if self.is_server
            else "Free or remove the file, or name another one; the same call goes on.",
        )

    def scrub(self, text: str) -> str:
        """Return text without anything secret of the URL, however it is written."""
        forms = (
            each(secret)
            for secret in self._secrets
            for each in (str, quote, quote_plus, unquote, repr)
        )
        for form in sorted(set(forms), key=len, reverse=True):
            text = text.replace(form, "***")
        return text

    def share(self, grace: int) -> None:
        """Go by the seconds of the process that made the study: all have to agree on them."""
        self.grace = self.backend.grace_period = grace

    @contextmanager
    def beating(self, trial_id: int) -> Iterator[None]:
        """Give signs of life of a trial, from now on."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(self.grace / BEATS_A_GRACE):
                with suppress(Exception):  # one beat may be missed; the next one counts
                    self.backend.record_heartbeat(trial_id)
            self.backend.remove_session()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        """Close all connections."""
        self.backend.remove_session()
        self.backend.engine.dispose()


class _Again(Exception):  # noqa: N818
    """Another process has made the tables in between."""


def _sqlite_path(text: str) -> str:
    """Return the path in a URL of SQLite, and anything else as it is.

    >>> _sqlite_path("sqlite:///study.db")
    'study.db'
    """
    start = "sqlite:///"
    found = text.removeprefix(start)
    return found if text.startswith(start) and found and "?" not in found else text


def _sqlite(path: Path) -> dict[str, Any]:
    """Return options that open an SQLite file by its path, which a URL could not spell."""
    try:
        os.close(open_regular(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise StudyError(
            str(path),
            got=f"cannot hold a study ({error.strerror})",
            expected="an SQLite file is written there",
            fix="Name another place.",
        ) from None
    connect: Callable[[], sqlite3.Connection] = lambda: sqlite3.connect(  # noqa: E731
        path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
    )
    return {"creator": connect, "poolclass": NullPool}
