"""Files are written whole, beside nothing else, and never through a link."""

import os
import stat
import sys

import pytest
from helpers import runs
from helpers.regressors import X, Y, regressor

import condens
from condens.errors import KindError
from condens.files import append, open_regular, write_whole
from condens.integrations.onnx import export
from condens.nn import MixtureNetwork
from condens.training.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="has other files")


@pytest.mark.parametrize("path", [None, 3, b"model", ["model"]], ids=str)
def test_what_is_no_path_is_refused_by_name_at_every_door(path):
    network = MixtureNetwork.of(2, 1)
    model = regressor().fit(X, Y)
    for name, use in (
        ("path", lambda: condens.load(path)),
        ("path", lambda: condens.MDNRegressor.load(path)),
        ("path", lambda: model.save(path)),
        ("path", lambda: condens.persistence.load(path)),
        ("path", lambda: condens.persistence.save(network, path)),
        ("path", lambda: export(network, path)),
        ("directory", lambda: RunDirectory(path)),
    ):
        with pytest.raises(KindError) as raised:
            use()
        assert str(raised.value).startswith(f"{name} is {path!r}, but a path was expected. Pass")


def names(path):
    return sorted(file.name for file in path.iterdir())


class Died(BaseException):
    pass


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Return what a writer leaves that dies before it moves its file."""

    def dies(*_):
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", dies)
        patched.setattr(os, "unlink", dies)
        with pytest.raises(Died):
            write_whole(tmp_path / "file", b"half")
    (left,) = tmp_path.iterdir()
    return left


def test_a_new_name_each_time_and_nothing_left(tmp_path):
    seen = set()
    opened = os.open

    def noted(path, flags, *rest, **others):
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            assert flags & os.O_NOFOLLOW
            seen.add(os.fspath(path))
        return opened(path, flags, *rest, **others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", noted)
        for number in range(5):
            write_whole(tmp_path / "file", bytes([number]))
    assert len(seen) == 5
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"\4"


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "file").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()


def test_what_a_dead_writer_left_goes(tmp_path, part):
    assert part.exists()
    write_whole(tmp_path / "other", b"new")
    assert names(tmp_path) == ["other"]


def test_what_a_killed_process_left_goes(tmp_path):
    assert runs.finish(runs.die_in_a_write, tmp_path / "file") == -9
    (left,) = names(tmp_path)
    assert left.endswith(".part")
    write_whole(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]


def test_what_a_living_writer_has_stays(tmp_path):
    """A writer that stands still in the middle of its write loses nothing to another."""
    with runs.process(runs.stand_in_a_write, tmp_path / "file") as running:
        runs.wait_for(lambda: any(map(os.path.getsize, tmp_path.iterdir())))
        write_whole(tmp_path / "other", b"new")
        assert len(names(tmp_path)) == 2
        (tmp_path / "go").touch()
        running.join(runs.PATIENCE)
        assert running.exitcode == 0
    assert (tmp_path / "file").read_bytes() == b"slow"


def test_files_of_others_stay(tmp_path, part):
    """Links, pipes and names that are nearly ours, however they got there."""
    (tmp_path / "mine").write_text("mine")
    link = tmp_path / f".condens-{'0' * 16}.part"
    link.symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / f".condens-{'1' * 16}.part")
    for name in (".condens-12.part", "condens-0123456789abcdef.part", "file.part", ".x.part"):
        (tmp_path / name).write_text("mine")
    before = set(names(tmp_path)) - {part.name}
    write_whole(tmp_path / "new", b"new")
    assert set(names(tmp_path)) == before | {"new"}
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_directory_that_nobody_may_write(tmp_path):
    with pytest.raises(OSError, match=r"Permission|No such file|not permitted"):
        write_whole(tmp_path.__class__("/proc/condens"), b"")


def test_permissions(tmp_path):
    mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", b"")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
        (tmp_path / "file").chmod(0o600)
        write_whole(tmp_path / "file", b"")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    finally:
        os.umask(mask)


@pytest.mark.parametrize("follow", [True, False])
def test_pipes_directories_and_devices_are_not_opened(tmp_path, follow):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path.__class__("/dev/zero")):
        with pytest.raises(OSError, match="regular"):
            open_regular(path, follow=follow)


def test_appending(tmp_path):
    append(tmp_path / "log", b"a\n")
    append(tmp_path / "log", b"b\n")
    assert (tmp_path / "log").read_bytes() == b"a\nb\n"
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        append(tmp_path / "link", b"theirs")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        append(tmp_path / "pipe", b"theirs")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors")
def test_no_descriptor_is_left_open(tmp_path, part):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        write_whole(tmp_path / "file", b"new")
        append(tmp_path / "log", b"line")
        with pytest.raises(OSError, match="regular"):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
