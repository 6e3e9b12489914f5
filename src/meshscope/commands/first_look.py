"""The first answer about a run of many ranks, from summaries, before its account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from meshscope.probe.schema.message import message

from .open_capture import workers
from .output import Format, emit, emit_document, say
from .progress import ranks_progress

if TYPE_CHECKING:
    from meshscope.analyze.scale.account_steps import AccountSteps
    from meshscope.analyze.scale.blocks import Blocks
    from meshscope.analyze.scale.executors import Executor
    from meshscope.analyze.scale.slow_ranks import FirstAnswer
    from meshscope.analyze.scale.store import Summaries


class FirstLook(NamedTuple):
    """What summaries tell, and at which steps to look next."""

    made: Summaries
    answer: FirstAnswer | None
    """None where no step was finished by all ranks, or no pass was recorded."""
    blocks: Blocks
    """The steps of the run, and its ranks by blocks of steps."""
    steps: AccountSteps | None
    """None where all steps have room."""
    most_rows: int | None = None
    """Records that an account may hold, where its memory is limited."""

    def to_json(self) -> dict[str, Any] | None:
        """Return it for programs; None without an answer."""
        from meshscope.analyze.output.json.summaries import summaries_to_json

        if self.answer is None:
            return None
        steps = None if self.steps is None else list(self.steps.steps)
        return {**summaries_to_json(self.made, self.answer), "account_steps": steps}

    def show(self, output: Format, *, all_steps: bool = False) -> None:
        """Write it for people at once; programs get it with the account.

        Args:
            output: The form.
            all_steps: Whether the account that follows is of all steps, not of those that have room.
        """
        from meshscope.analyze.output.render import to_markdown
        from meshscope.analyze.output.text.summaries import looked_at, summaries_document

        if output is Format.JSON:
            return
        answered = [] if self.answer is None else summaries_document(self.made, self.answer)
        document = [*answered, *looked_at(None if all_steps else self.steps)]
        if not document:
            return
        if output is Format.MARKDOWN:
            emit(to_markdown(document))
        else:
            emit_document(document)
            emit("")


class Room(NamedTuple):
    """How much memory there is, and which steps are asked for."""

    limit_bytes: float | None = None
    """Of each worker, and of the account; None: the usual."""
    steps: str | None = None


def executor_for(processes: int | None, cluster: str | None) -> Executor:
    """Return where summaries are made: in processes of this machine, one a CPU if not said, or on a cluster.

    Raises:
        BadParameter: Both are given.
    """
    from meshscope.analyze.scale.executors import executor_of

    if cluster is not None and processes is not None:
        raise typer.BadParameter(str(message("usage.workers_of_cluster")))
    return executor_of(processes or workers(), cluster)


def first_look(run: Path, executor: Executor, room: Room) -> FirstLook:
    """Make the summaries of a run and return what they tell, and which steps have room for an account.

    Raises:
        ConfigError: It is no run directory, or one step has no room.
        MeshscopeError: It cannot be read, or workers died again and again.
        OSError: The summaries cannot be written.
    """
    from meshscope.analyze.load.load import most_rows
    from meshscope.analyze.scale.account_steps import (
        account_steps,
        beside_account,
        profiled_rows,
        require_room,
        rows_in,
    )
    from meshscope.analyze.scale.blocks import blocks_of
    from meshscope.analyze.scale.first_answer import outlook_of
    from meshscope.analyze.scale.segments import ranks_of_run
    from meshscope.analyze.scale.store import write_summaries
    from meshscope.analyze.tables.part import StepRange
    from meshscope.probe.schema.errors import ConfigError, TraceFormatError
    from meshscope.probe.schema.rundir import is_run_directory

    if not is_run_directory(run):
        raise ConfigError(
            message("refused.no_ranks_to_share"),
            where=str(run),
            remedy=message("advice.ingest_first"),
        )
    with ranks_progress(len(ranks_of_run(run))) as on_done:
        made = write_summaries(run, executor, on_done, limit_bytes=room.limit_bytes)
    try:
        answer, blocks = outlook_of(made, room.limit_bytes)
    except TraceFormatError as error:
        say(f"no first answer from summaries: {error}")
        answer, blocks = None, blocks_of(made)
    within = None if room.steps is None else StepRange.parse(room.steps)
    if room.limit_bytes is None:
        chosen = account_steps(blocks, answer, most_rows(), within)
        return FirstLook(made, answer, blocks, chosen)
    profiled = profiled_rows(run)
    beside = beside_account(run, profiled)
    most = rows_in(room.limit_bytes - beside)
    chosen = account_steps(blocks, answer, most, within, profiled)
    require_room(chosen, room.limit_bytes, beside)
    return FirstLook(made, answer, blocks, chosen, most)
