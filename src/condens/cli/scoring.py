"""One question to every row of a table or of many, in parts: what `predict` and `sample` share."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from condens.cli import shards
from condens.cli.console import in_options, note
from condens.cli.shards import Ledger, Process, Shard, State
from condens.cli.tables import Input, Writer, condition_names, table_of, take
from condens.errors import ArgumentError, CondensError, ExtrapolationWarning
from condens.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from condens.estimator.predictions import Extrapolation
    from condens.estimator.regressor import MDNRegressor

# From the conditions of a block, all its columns and the number of its first row, to columns.
Answer = Callable[["pa.Table", "pa.Table", int], dict[str, Any]]


@dataclass
class Scoring:
    """A question to a model, and how the tables are read that it is asked of.

    Args:
        command: that asks.
        model: the file of the model.
        fitted: the model.
        reading: how tables are read; its source does not matter.
        columns: that are read.
        numeric: those that hold numbers.
        rows_per_block: that are answered at a time, whatever parts a file comes in.
        options: all that the answers depend on, beside the model and the table.
        answer: makes the function that answers, from the name of a table of many, or "" of one.
    """

    command: str
    model: Path
    fitted: "MDNRegressor"
    reading: Input
    columns: Sequence[str]
    numeric: Sequence[str]
    rows_per_block: int
    options: Mapping[str, Any]
    answer: Callable[[str], Answer]
    _outside: "Extrapolation | None" = field(default=None, init=False)

    def run(
        self,
        data: Sequence[str],
        output: str | None,
        form: str | None,
        *,
        force: bool = False,
        check: bool = False,
    ) -> None:
        """Answer for one table, or for the share of many that this process has."""
        if shards.are_many(data, output):
            self._many(data, output, form, force=force, check=check)
            return
        if check:
            raise ArgumentError(
                "--check",
                got="was asked of one file",
                expected="it looks at a directory of answers",
                fix="Pass -o out/, for instance.",
            )
        process = Process.current()
        if process.rank:
            return
        if process.world > 1:
            note("One table is for one process: the others have nothing to do.")
        place = None if output is None else Path(output)
        with Writer(place, form, force=force, inputs=(self.model, data[0])) as writer:
            self._write(data[0], "", writer)
        self._warn()

    def _write(self, source: str | Path, name: str, writer: Writer) -> None:
        """Read a table, answer block by block, and write."""
        answer, names, first = self.answer(name), condition_names(self.fitted), 0
        parts = self.reading._replace(source=str(source)).batches(self.numeric, self.columns)
        for block in _blocks(parts, self.rows_per_block):
            conditions = take(block, names, "the model's column")
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", ExtrapolationWarning
                )  # counted, and said at the end
                writer.write(table_of(answer(conditions, block, first)))
            self._count_outside(conditions)
            first += len(block)

    def _count_outside(self, conditions: "pa.Table") -> None:
        from condens.estimator.predictions import Predictions

        encoder = self.fitted.encoder_
        read = Predictions(self.fitted.network_, encoder.encode(conditions, "X"), flat=False)
        found = read.extrapolation(encoder.labels)
        if found is not None:
            self._outside = found if self._outside is None else self._outside + found

    def _warn(self) -> None:
        if self._outside is not None:
            self._outside.warn()

    # Many tables.

    def _many(
        self, data: Sequence[str], output: str | None, form: str | None, *, force: bool, check: bool
    ) -> None:
        process, sources = Process.current(), shards.files_of(data)
        directory = shards.directory_of(output, sources)
        all_ = shards.shards_of(sources, directory, form)
        options = {**self.options, **self.reading.options()}
        ledger = Ledger(self.command, shards.digest_of(self.model), options)
        states = {shard: ledger.state(shard) for shard in all_}
        if check:
            self._report(states, directory)
            return
        if not force:
            shards.refuse_foreign(states)
        shards.prepare(directory, all_)
        mine = [all_[n] for n in process.share([_size(shard.source) for shard in all_])]
        self._write_all(mine, states, ledger, process)
        self._warn()
        after = {shard: ledger.state(shard) for shard in all_}
        others = {*all_}.difference(mine)
        left = [shard for shard in others if after[shard].is_open]
        if left:
            note(f"{len(left)} of {len(all_)} tables are still with other processes.")
            failed = [shard for shard in mine if after[shard].kind == "failed"]
            # torchrun would stop the other processes as soon as one exits with an error: the
            # last one reports.
            if failed and not shards.launch():
                self._report({shard: after[shard] for shard in mine}, directory)
            return
        self._report(after, directory)

    def _write_all(
        self,
        mine: Sequence[Shard],
        states: Mapping[Shard, State],
        ledger: Ledger,
        process: Process,
    ) -> None:
        todo = [shard for shard in mine if states[shard].kind != "finished"]
        for shard in todo:
            ledger.forget_failure(shard)
        failed = 0
        with Progress(self.command, len(todo), None if process.rank == 0 else False) as progress:
            for shard in todo:
                record = ledger.record(shard)
                try:
                    self._write_shard(shard, ledger, record)
                except CondensError as error:
                    failed += 1
                    ledger.note_failure(shard, record, _named(shard, error))
                progress.advance()
        who = f"Process {process.rank} of {process.world}: " if process.world > 1 else ""
        note(
            f"{who}{len(todo) - failed} written, {len(mine) - len(todo)} finished before"
            f"{f', {failed} failed' if failed else ''}."
        )

    def _write_shard(self, shard: Shard, ledger: Ledger, record: Mapping[str, Any]) -> None:
        with Writer(
            shard.output,
            shard.format,
            force=True,
            metadata=shards.embedded_metadata(record),
            before_move=lambda written: ledger.note_output(shard, record, written),
        ) as writer:
            self._write(shard.source, shard.name, writer)

    def _report(self, states: Mapping[Shard, State], directory: Path) -> None:
        """Say what is missing, and exit with 1 if anything is."""
        missing = 0
        for shard, state in states.items():
            if state.kind == "finished":
                continue
            missing += 1
            told = {
                "failed": state.detail,
                "missing": f"{shard.output} is missing: {shard.source} has no answers yet.",
                "foreign": f"{shard.output} {state.detail}.",
            }
            # Without the number of this process: the table may be another's.
            note("Error: " + " ".join(told[state.kind].split()))
        total = len(states)
        if missing:
            note(
                f"{directory} has the answers to {total - missing} of {total} tables. The same "
                "command makes those that are missing."
            )
            raise typer.Exit(1)
        note(f"{directory} has the answers to {'all ' if total > 1 else ''}{total} table(s).")


def _blocks(parts: Iterable["pa.Table"], rows: int) -> Iterator["pa.Table"]:
    """Yield tables of so many rows each, the last of fewer, from parts of any length."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += len(part)
        if count < rows:
            continue
        whole = pa.concat_tables(waiting)
        end = count - count % rows
        for first in range(0, end, rows):
            yield whole.slice(first, rows)
        waiting, count = [whole.slice(end)], count - end
    if count:
        yield pa.concat_tables(waiting)


def _named(shard: Shard, error: CondensError) -> str:
    """Return an error that names the table."""
    text = in_options(str(error))
    return text if str(shard.source) in text else f"{shard.source}: {text}"


def _size(path: Path) -> int:
    return path.stat().st_size
