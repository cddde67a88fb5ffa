"""Where studies are kept: a real PostgreSQL, and passwords that nobody sees."""

import traceback
from urllib.parse import quote

import numpy as np
import pytest
from helpers import postgres

from condens.errors import StudyError
from condens.tuning import Range, Study
from condens.tuning.storage import Storage

SPACE = {"learning_rate": Range(1e-3, 1e-2), "width": 8, "epochs": 1, "shortcut": False}
SECRET = "hunter2{x}%41'"
QUOTED = quote(SECRET, safe="")


def rows():
    x = np.random.default_rng(0).normal(size=(120, 1))
    return x, x


@pytest.fixture(scope="module")
def server():
    with postgres.server() as address:
        yield address


def url_of(server, password=postgres.PASSWORD, database="postgres"):
    host, port = server
    secret = quote(password, safe="")
    return f"postgresql+psycopg://{postgres.USER}:{secret}@{host}:{port}/{database}"


def told(place):
    """Return everything that is said where a study cannot be opened there."""
    with pytest.raises(StudyError) as raised:
        Storage(place, 60)
    return "".join(traceback.format_exception(raised.value)) + repr(raised.value)


def test_a_study_on_a_server(server):
    with Study(*rows(), storage=url_of(server), name="first ü", space=SPACE) as study:
        assert postgres.PASSWORD not in study.label
        assert (
            study.label
            == f"postgresql+psycopg://{postgres.USER}:***@{server[0]}:{server[1]}" + ("/postgres")
        )
        study.search(2)
    with Study(*rows(), storage=url_of(server), name="first ü", space=SPACE) as study:
        study.search(3)
        assert [t.state for t in study.trials] == ["complete"] * 3


def test_wrong_passwords_and_databases_on_a_server(server):
    assert "password authentication failed" in told(url_of(server, "wr0ng"))
    assert "wr0ng" not in told(url_of(server, "wr0ng"))
    assert 'database "none" does not exist' in told(url_of(server, database="none"))
    asked = f"postgresql+psycopg://{server[0]}:{server[1]}/postgres?user=x&password=wr0ng"
    assert "wr0ng" not in told(asked)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql+psycopg://u:{}@127.0.0.1:1/d", "Connection refused"),
        ("postgresql+psycopg://u:{}@127.0.0.1:port/d", "cannot be read"),
        ("postgresql+psycopg://u:{}@more@127.0.0.1/d", "cannot be read"),
        ("postgresql+psycopg://u:more@{}/x@127.0.0.1/d", "cannot be read"),
        ("postgresql+psycopg://127.0.0.1:1/d?password={}", "Connection refused"),
        ("://u:{}@127.0.0.1/d", "cannot be read"),
        ("nothing://u:{}@127.0.0.1/d", "begins with 'nothing'"),
        ("postgresql+nothing://u:{}@127.0.0.1/d", "begins with 'postgresql+nothing'"),
        ("postgresql+psycopg2://u:{}@127.0.0.1/d", "needs the driver psycopg2"),
        ("sqlite://u:{}@host/d", "cannot be read"),
    ],
)
def test_a_password_is_never_shown(url, word):
    text = told(url.format(QUOTED))
    assert word in text
    for form in (SECRET, QUOTED, repr(SECRET)[1:-1], "hunter2"):
        assert form not in text


@pytest.mark.slow
def test_a_server_that_goes_away_is_an_error_in_words():
    with postgres.server() as address:
        study = Study(*rows(), storage=url_of(address), space=SPACE)
        study.search(1)
    with pytest.raises(StudyError, match="does not answer as a study"):
        study.search(2)
    study.close()
