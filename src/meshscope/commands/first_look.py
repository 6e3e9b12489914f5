"""The first answer about a run of many ranks, from summaries, before its account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from .opening import workers
from .output import Format, emit, emit_document, say
from .progress import ranks_progress

if TYPE_CHECKING:
    from meshscope.analyze.scale.account_steps import AccountSteps
    from meshscope.analyze.scale.executors import Executor
    from meshscope.analyze.scale.slow_ranks import FirstAnswer
    from meshscope.analyze.scale.store import Summaries


class FirstLook(NamedTuple):
    """What summaries tell, and at which steps to look next."""

    made: Summaries
    answer: FirstAnswer
    steps: AccountSteps | None
    """None where all steps have room."""

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        from meshscope.analyze.output.json.summaries import summaries_to_json

        steps = None if self.steps is None else list(self.steps.steps)
        return {**summaries_to_json(self.made, self.answer), "account_steps": steps}

    def show(self, output: Format) -> None:
        """Write it for people at once; programs get it with the account."""
        from meshscope.analyze.output.render import to_markdown
        from meshscope.analyze.output.text.summaries import looked_at, summaries_document

        if output is Format.JSON:
            return
        document = [
            *summaries_document(self.made, self.answer),
            *looked_at(self.steps),
        ]
        if output is Format.MARKDOWN:
            emit(to_markdown(document))
        else:
            emit_document(document)
            emit("")


def executor_for(processes: int | None, cluster: str | None) -> Executor:
    """Return where summaries are made: in processes of this machine, one a CPU if not said, or on a cluster.

    Raises:
        BadParameter: Both are given.
    """
    from meshscope.analyze.scale.executors import executor_of

    if cluster is not None and processes is not None:
        raise typer.BadParameter("--workers has no part in --cluster, which has workers of its own")
    return executor_of(processes or workers(), cluster)


def first_look(run: Path, executor: Executor) -> FirstLook | None:
    """Make the summaries of a run and return what they tell; None where they tell nothing.

    Raises:
        ConfigError: It is no run directory.
        MeshscopeError: It cannot be read, or workers died again and again.
        OSError: The summaries cannot be written.
    """
    from meshscope.analyze.load.load import most_rows
    from meshscope.analyze.scale.account_steps import account_steps
    from meshscope.analyze.scale.segments import ranks_of_run
    from meshscope.analyze.scale.slow_ranks import first_answer
    from meshscope.analyze.scale.store import write_summaries
    from meshscope.probe.schema.errors import ConfigError, TraceFormatError
    from meshscope.probe.schema.rundir import is_run_directory

    if not is_run_directory(run):
        raise ConfigError(
            "it is no run directory, so it has no ranks to share out",
            where=str(run),
            remedy="Make one first: meshscope ingest PATH",
        )
    with ranks_progress(len(ranks_of_run(run))) as on_done:
        made = write_summaries(run, executor, on_done)
    try:
        answer = first_answer(made)
    except TraceFormatError as error:
        say(f"no first answer from summaries: {error}")
        return None
    return FirstLook(made, answer, account_steps(made, answer, most_rows()))
