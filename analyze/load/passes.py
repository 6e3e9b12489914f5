"""The passes that make one capture of what was read, in their order, with the tables that each needs and makes.

Read ``OWN`` or ``FOREIGN`` from top to bottom to see what happens to a capture before it is analysed. A pass
that has nothing to do returns the capture as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..align.communication.profiled_steps import with_paired_numbers
from ..align.communication.realignment import with_agreed_positions
from ..align.steps.rounds import with_rounds
from ..align.steps.same_step import with_matched_steps
from ..align.topology.axes import with_axes
from ..align.topology.layout import with_inferred_layout
from ..align.topology.pass_numbers import with_passes_numbered
from ..tables.trace import Trace
from .possible_times import with_possible_times

EVERY = ("*",)
"""All tables with times, those that are on disk too."""
_TIMED = ("step", "span", "collective", "p2p", "memory")
_COMMUNICATION = ("group", "span", "collective", "p2p")
_NAMED = ("group", "collective", "p2p")
"""Tables that name an axis."""


def _on_one_clock(trace: Trace) -> Trace:
    """Return the trace on one clock. Most have one: what compares clocks is imported for the others."""
    if len({trace.clock_of(rank) for rank in trace.ranks}) < 2:
        return trace
    from ..align.clocks.alignment import align

    return align(trace)


class Pass(msgspec.Struct, frozen=True):
    """One change to a capture."""

    apply: Callable[[Trace], Trace]
    needs: tuple[str, ...]
    """Tables that it may read."""
    makes: tuple[str, ...]
    """Tables that it may change; all others stay the same objects."""


POSSIBLE_TIMES = Pass(with_possible_times, needs=_TIMED, makes=_TIMED)
PAIRED_NUMBERS = Pass(with_paired_numbers, needs=EVERY, makes=EVERY)
AGREED_POSITIONS = Pass(
    with_agreed_positions, needs=("collective", "p2p"), makes=("collective", "p2p")
)
ONE_CLOCK = Pass(_on_one_clock, needs=EVERY, makes=EVERY)
SAME_STEPS = Pass(with_matched_steps, needs=EVERY, makes=EVERY)
ROUNDS = Pass(with_rounds, needs=EVERY, makes=EVERY)
AXES = Pass(with_axes, needs=_COMMUNICATION, makes=_NAMED)
LAYOUT = Pass(with_inferred_layout, needs=_COMMUNICATION, makes=_NAMED)
PASS_NUMBERS = Pass(with_passes_numbered, needs=("span", "p2p"), makes=("span",))

OWN = (ONE_CLOCK, SAME_STEPS, ROUNDS, AXES, LAYOUT, PASS_NUMBERS)
"""For a run directory of ours, after its impossible times were left out and its deep traces joined."""
FOREIGN = (POSSIBLE_TIMES, PAIRED_NUMBERS, AGREED_POSITIONS, ONE_CLOCK, AXES, LAYOUT)
"""For traces of other tools."""


def passed(trace: Trace, passes: Sequence[Pass]) -> Trace:
    """Return the capture after each of the passes, one after the other."""
    for one in passes:
        trace = one.apply(trace)
    return trace
