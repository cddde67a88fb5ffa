"""The progress line: after a second, over itself, and gone at the end."""

import io
import threading
import time

import pytest

from condens.progress import Line, Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def clocked(monkeypatch, *times):
    now = iter(times)
    monkeypatch.setattr("condens.progress.time.monotonic", lambda: next(now))


def test_quick_work_leaves_no_line(monkeypatch):
    clocked(monkeypatch, 0.0, 0.4, 0.9)
    stream = Terminal()
    with Progress("judging", 10, stream=stream) as progress:
        progress.advance(5)
        progress.advance(5)
    assert stream.getvalue() == ""


def test_slow_work_is_told_of_and_the_line_removed(monkeypatch):
    clocked(monkeypatch, 0.0, 2.0, 2.05, 6.0)
    stream = Terminal()
    with Progress("judging", 8, stream=stream) as progress:
        progress.advance(2)
        progress.advance(2)  # too soon after the last line
        progress.advance(2)
    first, second, blank, end = stream.getvalue().split("\r")[1:]
    assert "judging 25%  0:06 left" in first
    assert "judging 75%  0:02 left" in second
    assert blank.strip() == ""
    assert len(blank) >= len(second)
    assert end == ""


def test_a_line_comes_before_the_first_piece_is_done(monkeypatch):
    monkeypatch.setattr("condens.progress.SECONDS_BEFORE_A_LINE", 0.01)
    stream = Terminal()
    with Progress("judging", stream=stream) as progress:
        deadline = time.monotonic() + 10
        while "judging 0%  0:00" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "judging 0%  0:00" in stream.getvalue()
        progress.total = 2
        progress.advance(1)
    assert stream.getvalue().endswith("\r")
    assert not [one for one in threading.enumerate() if one.name == "progress of judging"]


@pytest.mark.parametrize(("show", "kind"), [(None, io.StringIO), (False, Terminal)])
def test_quiet_where_nobody_looks(monkeypatch, show, kind):
    clocked(monkeypatch, 0.0, 9.0)
    stream = kind()
    with Progress("judging", 2, show, stream) as progress:
        progress.advance()
    assert stream.getvalue() == ""


def test_a_shorter_line_covers_a_longer_one():
    stream = io.StringIO()
    line = Line(stream)
    line.write("a long line")
    line.write("short", end="\n")
    assert stream.getvalue() == "\ra long line\rshort      \n"
