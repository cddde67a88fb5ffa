"""Tables in many files: which there are, whose they are, and which of their answers are finished.

Every answer goes with a record of what it was made from: within Parquet and Arrow files, beside
others. What is finished is told by files alone, so that processes need not talk to each other.
"""

import hashlib
import heapq
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal, NamedTuple

from condens.cli.tables import BINARY, ENDINGS, FORMATS
from condens.errors import ArgumentError, TableFileNotFoundError
from condens.files import cannot_hold, remove_parts, write_whole

# In the schema of Parquet and Arrow files.
METADATA_KEY = b"condens"
RECORD_VERSION = 1
# Files that an error lists.
MAX_LISTED = 3


class Shard(NamedTuple):
    """One table of many: where it is, where its answers go, and in which format."""

    source: Path
    output: Path
    format: str

    @property
    def name(self) -> str:
        """The name of the file without its endings."""
        return _parted(self.source)[0]

    @property
    def side(self) -> Path:
        """The record beside the answers: of what they were made, or why there are none."""
        return self.output.with_name(f".condens-{self.output.name}.json")


class State(NamedTuple):
    """How far a shard is; `detail` is an error, or what other answers in its place are.

    A failure is `stale` if it is of an earlier launch, whose tables this one tries again.
    """

    kind: Literal["finished", "failed", "missing", "foreign"]
    detail: str = ""
    stale: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the process that has this shard is still to come to it."""
        return self.stale or self.kind in ("missing", "foreign")


class Process(NamedTuple):
    """Which process of how many this is, as torchrun tells by RANK and WORLD_SIZE."""

    rank: int
    world: int

    @classmethod
    def current(cls) -> "Process":
        """Return this one; the first of one, if the environment tells nothing."""
        given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
        if None in given.values():
            return cls(0, 1)
        try:
            found = cls(*(int(text or "") for text in given.values()))
        except ValueError:
            found = cls(-1, 0)
        if not 0 <= found.rank < found.world:
            raise ArgumentError(
                "RANK and WORLD_SIZE",
                got=f"are {given['RANK']!r} and {given['WORLD_SIZE']!r}",
                expected="a number from 0 and a larger one were expected in the environment",
                fix="Start the processes by torchrun, or unset both.",
            )
        return found

    def share(self, sizes: Sequence[int]) -> list[int]:
        """Return the numbers of the files that this process takes.

        The largest first, each to the process with the fewest bytes so far: every process finds
        the same, whenever it looks.

        >>> [Process(rank, 2).share([5, 1, 9, 3]) for rank in range(2)]
        [[2], [0, 1, 3]]
        """
        loads = [(0, rank) for rank in range(self.world)]
        mine = []
        for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
            load, rank = loads[0]
            heapq.heapreplace(loads, (load + max(1, sizes[number]), rank))
            if rank == self.rank:
                mine.append(number)
        return sorted(mine)


def launch() -> str:
    """Return what the processes have in common that torchrun started together; "" without it."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return ""
    if run == "none" and os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        run = f"process {os.getppid()}"  # nobody gave it a name
    return f"{run}, {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def are_many(data: Sequence[str], output: str | None) -> bool:
    """Tell whether a command is about a directory of answers, not about one file."""
    into = output is not None and (output.endswith(("/", os.sep)) or Path(output).is_dir())
    return into or len(data) > 1 or any(Path(d).is_dir() or _is_pattern(d) for d in data)


def _is_pattern(text: str) -> bool:
    return has_magic(text) and not Path(text).exists()


def files_of(data: Sequence[str]) -> list[Path]:
    """Return the files that paths, directories and patterns name, each once."""
    found: dict[Path, Path] = {}
    for each in data:
        for path in _expanded(each):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _expanded(text: str) -> list[Path]:
    path = Path(text)
    if text == "-":
        raise ArgumentError(
            "DATA",
            got="is -, standard input, among other tables or for a directory",
            expected="files were expected",
            fix="Pass it alone, with -o naming a file.",
        )
    if path.is_dir():
        found = [p for p in sorted(path.iterdir()) if p.is_file() and _is_table(p)]
        wanted = "CSV, TSV, Parquet, Arrow or JSON lines were expected, by their endings"
    elif _is_pattern(text):
        named = glob(text, recursive=True)  # noqa: PTH207
        found = [Path(p) for p in sorted(named) if Path(p).is_file()]
        wanted = "a file was expected"
    else:
        if not path.exists():
            raise TableFileNotFoundError(
                text, got="does not exist", expected="a file was expected", fix="Check the path."
            )
        return [path]
    if not found:
        got = "has no tables" if path.is_dir() else "matches no file"
        raise ArgumentError(text, got=got, expected=wanted, fix="Check the path.")
    return found


def _is_table(path: Path) -> bool:
    return not path.name.startswith(".") and bool(_parted(path)[1])


def _parted(path: Path) -> tuple[str, str]:
    """Return a name without its endings, and the format that these tell.

    >>> _parted(Path("day.1.csv.gz")), _parted(Path("README"))
    (('day.1', 'csv'), ('README', ''))
    """
    # With it comes all that reads tables, which takes time.
    from condens.data.sources import ENDINGS as ENDINGS_READ

    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    stem, dot, ending = name.rpartition(".")
    form = ENDINGS_READ.get(f"{dot}{ending}".lower()) if stem else None
    return (stem, form) if form else (path.name, "")


def shards_of(sources: Sequence[Path], directory: Path, form: str | None) -> list[Shard]:
    """Return the shards of files; refuse two that would be written to one place."""
    if form is not None and form not in FORMATS[1:]:
        raise ArgumentError(
            "--format",
            got=f"is {form!r}",
            expected=f"{', '.join(FORMATS[1:])} were expected for files",
            fix="Use one of these, or leave it out for the format of each table.",
        )
    found: dict[Path, Shard] = {}
    for source in sources:
        name, own = _parted(source)
        chosen = form or own or "csv"
        shard = Shard(source, directory / f"{name}.{chosen}", chosen)
        other = found.setdefault(Path(directory, name), shard)
        if other is not shard:
            raise ArgumentError(
                f"{other.source} and {source}",
                got=f"would both be written to {directory / name}",
                expected="every table needs a name of its own",
                fix="Rename one, or pass them one by one with another -o.",
            )
    return list(found.values())


def directory_of(output: str | None, sources: Sequence[Path]) -> Path:
    """Return the directory of the answers; refuse one that holds the tables too."""
    if output is None:
        raise ArgumentError(
            "-o",
            got="is missing",
            expected="answers to several tables go to a directory",
            fix="Pass -o out/, for instance.",
        )
    directory = Path(output)
    named = directory.suffix.lower() in ENDINGS and not output.endswith(("/", os.sep))
    if not directory.is_dir() and (directory.exists() or named):
        raise ArgumentError(
            output,
            got="is a file" if directory.exists() else "names a file",
            expected="answers to several tables go to a directory",
            fix="Pass -o out/, for instance.",
        )
    place = directory.resolve()
    for source in sources:
        if source.resolve().parent == place:
            raise ArgumentError(
                output,
                got=f"holds {source.name}, which is a file that this command reads",
                expected="a directory for the answers alone was expected",
                fix="Pass another -o.",
            )
    return directory


@dataclass(frozen=True)
class Ledger:
    """What answers were made from, and whether those in a place are the ones asked for.

    An input is known by its size and the time it was written, as `make` and `rsync` know it: to
    read all tables again, only to see that nothing is to be done, would take too long.

    Args:
        command: its name.
        model: the SHA-256 of its file.
        options: all that the answers depend on.
    """

    command: str
    model: str
    options: Mapping[str, Any]

    def record(self, shard: Shard) -> dict[str, Any]:
        """Return what the answers to a table, as it is now, are made from."""
        found = shard.source.stat()
        record = {
            "version": RECORD_VERSION,
            "command": self.command,
            "model": self.model,
            "input": {"name": shard.source.name, **_identity(found)},
            "options": dict(self.options),
        }
        return dict(json.loads(json.dumps(record)))

    def state(self, shard: Shard) -> State:
        """Return how far a shard is."""
        try:
            wanted = self.record(shard)
        except OSError as error:
            return State("failed", f"{shard.source}: {error.strerror}")
        beside = _read_json(shard.side)
        told = {name: beside.pop(name, None) for name in ("error", "launch", "output")}
        failed = State("failed", str(told["error"]), stale=told["launch"] != launch())
        if shard.output.exists():
            kept = _embedded(shard) if shard.format in BINARY else beside
            ours = kept == wanted
            if ours and (shard.format in BINARY or told["output"] == _identity_of(shard.output)):
                return State("finished")
            if beside == wanted and told["error"] is not None:
                return failed
            return State("foreign", "has changed since" if ours else _difference(kept, wanted))
        return failed if beside == wanted and told["error"] is not None else State("missing")

    def note_failure(self, shard: Shard, record: Mapping[str, Any], error: str) -> None:
        """Leave word of why a shard has no answers, for the process that ends last."""
        _write_json(shard.side, {**record, "error": error, "launch": launch()})

    def note_output(self, shard: Shard, record: Mapping[str, Any], written: os.stat_result) -> None:
        """Leave a record of answers that are about to be moved to their place.

        Before the move: of a process that is killed in between, the answers in the place, if
        any, are not those of the record, and are made again.
        """
        if shard.format in BINARY:
            shard.side.unlink(missing_ok=True)  # of an earlier failure
        else:
            _write_json(shard.side, {**record, "output": _identity(written)})

    def forget_failure(self, shard: Shard) -> None:
        """Remove the word of a failure, since the shard is tried again."""
        if "error" in _read_json(shard.side):
            shard.side.unlink(missing_ok=True)


def refuse_foreign(states: Mapping[Shard, State]) -> None:
    """Refuse to overwrite files that are not the answers asked for."""
    others = [(shard, state) for shard, state in states.items() if state.kind == "foreign"]
    if not others:
        return
    listed = "; ".join(f"{shard.output} {state.detail}" for shard, state in others[:MAX_LISTED])
    more = f"; and {len(others) - MAX_LISTED} more" if len(others) > MAX_LISTED else ""
    raise ArgumentError(
        f"{listed}{more}:",
        got="the output exists",
        expected="nothing is overwritten unasked",
        fix="Pass --force to overwrite, or another -o.",
    )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def embedded_metadata(record: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return a record as metadata of a schema."""
    return {METADATA_KEY: json.dumps(record, sort_keys=True).encode()}


def _embedded(shard: Shard) -> dict[str, Any]:
    """Return the record within a file; nothing, if it has none."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if shard.format == "parquet":
            schema = parquet.read_schema(shard.output)
        else:
            with pa.OSFile(str(shard.output)) as file:
                schema = pa.ipc.open_file(file).schema
        found = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
    except (OSError, ValueError, pa.ArrowException):
        return {}
    return found if isinstance(found, dict) else {}


def _difference(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return in words what answers were made from, if not from what is asked for."""
    if kept.keys() != wanted.keys() or kept["version"] != wanted["version"]:
        return "was not written by this command"
    if kept["command"] != wanted["command"]:
        return f"was written by condens {kept['command']}"
    if kept["model"] != wanted["model"]:
        return "was made with another model"
    if kept["input"] != wanted["input"]:
        return f"was made from another {wanted['input']['name']}, or before it was written again"
    ours, theirs = wanted["options"], dict(kept["options"])
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    listed = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    return f"was made with another {listed}"


def _identity(found: os.stat_result) -> dict[str, int]:
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns}


def _identity_of(path: Path) -> dict[str, int] | None:
    try:
        return _identity(path.stat())
    except OSError:
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(record, sort_keys=True).encode() + b"\n")


def prepare(directory: Path, shards: Sequence[Shard]) -> None:
    """Make the directory of the answers, and remove what killed processes left there.

    Refuse places that can hold no file, such as directories and links to nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    remove_parts(directory)
    for shard in shards:
        fault = cannot_hold(shard.output)
        if fault is not None:
            raise ArgumentError(str(shard.output), **fault)
