"""A part of a capture: some of its steps, as the user asks for them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.tables import TABLES

from ..wording.message import message
from .trace import Trace

_OF_THE_WHOLE = frozenset({"recording"})
"""Tables that tell of the run, though they have a step."""
_OF_THE_END = ("progress", "standing", "noted_collective")
"""The tables that tell where a run broke off."""
_FORM = re.compile(r"(\d{0,15}):(\d{0,15})")
_LARGEST = (1 << 62) - 1


class StepRange(NamedTuple):
    """Steps from the first to the last, both included."""

    first: int
    last: int

    @property
    def text(self) -> str:
        """The form that ``parse`` takes."""
        return f"{self.first}:" if self.last == _LARGEST else f"{self.first or ''}:{self.last}"

    @classmethod
    def parse(cls, text: str, option: str = "--steps") -> StepRange:
        """Return the steps that ``FIRST:LAST`` names; without one of them from the first, or to the last.

        Args:
            text: The range.
            option: What it was given with, for the error.

        Raises:
            ConfigError: It names none.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None or not any(found.groups()):
            raise _unclear(text, option)
        first, last = (int(part) if part else None for part in found.groups())
        named = cls(first or 0, _LARGEST if last is None else last)
        if named.first > named.last:
            raise _unclear(text, option)
        return named


def of_steps(trace: Trace, steps: StepRange) -> Trace:
    """Return the part of a capture that is of some steps.

    What belongs to no step, such as samples of devices, stays whole. Where a run broke off belongs
    to a part that goes to its end only: what ranks recorded last is gone from the others.

    Raises:
        ConfigError: It holds none of them, or no ends of steps.
    """
    known = trace.frame("step")["step"]
    if known.empty:
        raise ConfigError(
            message("refused.no_ends_to_choose"),
            where="--steps",
            remedy=message("advice.leave_it_out"),
        )
    if not known.between(*steps).any():
        raise ConfigError(
            message("refused.no_such_steps", steps=steps.text, first=known.min(), last=known.max()),
            where="--steps",
            remedy=message("advice.some_of_these"),
        )

    def chosen(_rank: int, table: pa.Table) -> pa.Table:
        step = pc.cast(table["step"], pa.int64())
        inside = pc.and_(pc.greater_equal(step, steps.first), pc.less_equal(step, steps.last))
        return table.filter(inside)

    part = replace(
        trace,
        chosen=steps,
        limits=(
            *trace.limits,
            message(
                "scope.chosen_steps",
                steps=steps.text,
                first=int(known.min()),
                last=int(known.max()),
            ),
        ),
    )
    for name, spec in TABLES.items():
        if "step" in spec.column_names() and name not in _OF_THE_WHOLE and name in trace.tables:
            part = part.with_changed_ranks(name, chosen)
    if steps.last <= known.max():
        part = part.with_tables({name: TABLES[name].empty() for name in _OF_THE_END})
    return part


def _unclear(text: str, option: str) -> ConfigError:
    return ConfigError(
        message("refused.names_no_steps", text=text),
        where=option,
        remedy=message("advice.first_and_last_step"),
    )
