"""What the captures of each program can show, whatever rows one of them happens to have.

An analysis asks for a capability, never for the name of a program. An importer whose captures show more
or less than a profiler's trace has a record in ``CAPABILITIES``.
"""

from __future__ import annotations

import msgspec

OWN = "meshscope"
"""Origin of captures of our probe."""
SYNTHETIC = "synthetic"
"""Origin of simulated jobs: nothing in them was measured."""
FLIGHT_RECORDER = "flight_recorder"
"""Origin of dumps: no steps, and an operation without an end was not complete."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of every capture of one program; the defaults are those of a profiler's trace."""

    has_steps: bool = True
    """Steps may be in it; of a dump never."""
    begins_with_process: bool = False
    """It was recorded from the start of the process, so one-time work is in it."""
    counts_steps_by_rank: bool = False
    """Each rank counted its steps, and passes outside of them, by itself: numbers may differ."""
    profiler_counts_steps: bool = False
    """The profiler of each rank counted its steps from where it began: numbers may differ by a few."""
    counts_positions_by_rank: bool = False
    """Each rank counted its collectives by itself: positions may be shifted."""
    counts_every_operation: bool = False
    """Each rank counted every operation of a group, recorded or not: a gap in its numbers is a lost record."""
    job_numbers_collectives: bool = False
    """The job itself numbered its collectives: what has one number belongs together, whatever was lost."""
    is_in_issue_order: bool = False
    """Passes and operations lie on the clock of the host that issued them, in its order."""
    is_timed_on_host: bool = False
    """Times are those of the host, unless a device's are beside them."""
    uses_wall_clocks: bool = True
    """Its clocks should agree between hosts: a large correction is news. Monotonic ones never do."""
    has_comparable_times: bool = True
    """Times of ranks can be compared; of a dump only positions can."""
    sees_every_end: bool = False
    """An operation without an end was not complete when the capture was made."""
    records_whole_life: bool = True
    """How long a rank was silent, and how it ended, can be read from its last records."""
    records_how_it_ended: bool = False
    """That nothing is open means that the job ended in order."""
    sees_processes_end: bool = False
    """How each process ended was seen from outside."""
    has_peaks_since_start: bool = False
    """Peaks of memory are those since the process started."""
    states_mesh: bool = False
    """The job itself stated its mesh."""
    names_host_time: bool = False
    """Each class of the host's time, and of recomputation, is named where it happens: none means none."""
    repeats_cycles: bool = False
    """A profiler may have written several cycles, of which one can be chosen."""


CAPABILITIES = {
    OWN: Capabilities(
        begins_with_process=True,
        counts_every_operation=True,
        counts_steps_by_rank=True,
        is_in_issue_order=True,
        is_timed_on_host=True,
        uses_wall_clocks=False,
        records_how_it_ended=True,
        sees_processes_end=True,
        has_peaks_since_start=True,
        states_mesh=True,
        names_host_time=True,
    ),
    SYNTHETIC: Capabilities(records_how_it_ended=True),
    FLIGHT_RECORDER: Capabilities(
        has_steps=False,
        job_numbers_collectives=True,
        has_comparable_times=False,
        sees_every_end=True,
        records_whole_life=False,
        records_how_it_ended=True,
    ),
    "kineto": Capabilities(
        profiler_counts_steps=True, counts_positions_by_rank=True, repeats_cycles=True
    ),
    "nsight": Capabilities(counts_positions_by_rank=True),
}
