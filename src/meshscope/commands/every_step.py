"""The account of every step of a large run, for the verb that asks for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshscope.probe.schema.message import message

from .open_capture import next_command, workers
from .output import Format, show_document
from .progress import work_progress

if TYPE_CHECKING:
    from meshscope.analyze.every_step.joined import EveryStep, WindowSteps
    from meshscope.analyze.scale.executors import Executor

    from .first_look import FirstLook, Room


def show_every_step(
    look: FirstLook, executor: Executor, room: Room, topology: Path | None, output: Format
) -> None:
    """Account for every step of a run, by windows in parallel, and write the result.

    Args:
        look: What its summaries tell.
        executor: Where windows are accounted for.
        room: Memory of a worker, and which steps are asked for.
        topology: A topology file that is applied.
        output: The form of the result.

    Raises:
        ConfigError: There is no step to account for, or one has no room.
        LostWorkError: Workers died again and again.
        OSError: An account cannot be written.
    """
    from meshscope.analyze.every_step.joined import account_of_every_step
    from meshscope.analyze.output.json.every_step import every_step_to_json
    from meshscope.analyze.output.text.every_step import every_step_document

    windows = _windows(look, workers(), room)
    with work_progress(len(windows), "windows of steps", "accounted for") as on_done:
        found = account_of_every_step(look.made, windows, executor, on_done, topology)
    show_document(
        output,
        lambda: every_step_to_json(found) | {"summary": look.to_json()},
        partial(every_step_document, found),
        _following(look, found),
    )


def _windows(look: FirstLook, at_least: int, room: Room) -> tuple[WindowSteps, ...]:
    """Return the windows: with the memory that there is for each, and one for each worker."""
    from meshscope.analyze.every_step.joined import WINDOW_ROWS, windows_of
    from meshscope.analyze.tables.part import StepRange
    from meshscope.probe.schema.errors import ConfigError

    most = WINDOW_ROWS if look.most_rows is None else look.most_rows
    within = None if room.steps is None else StepRange.parse(room.steps)
    found = windows_of(look.blocks, most, at_least, within)
    if found:
        return found
    known = look.blocks.steps["step"].to_pylist()
    if within is None or not known:
        raise ConfigError(
            message("refused.no_step_of_all_ranks"),
            where=str(look.made.run),
            remedy=message("advice.how_it_ended"),
        )
    raise ConfigError(
        message("refused.no_such_steps", steps=within.text, first=known[0], last=known[-1]),
        where="--steps",
        remedy=message("advice.some_of_these"),
    )


def _following(look: FirstLook, found: EveryStep) -> str:
    """Return the command that looks closer at the window in which the first finding costs most."""
    dearest = next((one for one in found.findings if one.dearest_ns), None)
    if dearest is None:
        return ""
    return next_command("diagnose", look.made.run, "--steps", dearest.dearest.text)
