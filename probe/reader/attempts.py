"""Puts the parts of a rank's recording together: attempts follow each other.

A part is what one process recorded in one go. A job that was restarted, or
detached and attached again, has several of each rank; those of one time are an
attempt of the job. The probe counts steps and operations from the start of a
part, so numbers of a later attempt are moved behind those of the earlier ones,
by the same amount on all ranks::

    attempt 1    rank 0 steps 0..9     rank 1 steps 0..8 (killed)
    attempt 2    rank 0 steps 0..5     rank 1 steps 0..5
    result       rank 0 steps 0..15    rank 1 steps 0..8 and 10..15

Which steps of the training an attempt did again, after it had read a checkpoint,
is known only if the training says the number of a step; else it is stated as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.compute as pc

from ..schema.manifest import JOB_KEY
from ..schema.note import Note, note
from .joined_parts import Shifts, concatenated
from .manifest_tables import AttemptFacts, sequel, stated_training_step
from .part_times import FAR_NS, PartTimes, boot_of, failed_first
from .rank_records import ATTEMPT, RankRecords
from .step_numbers import align_steps, attached_while_running

_MOST_RANKS = 1 << 31


@dataclass(slots=True)
class Attempt:
    """The parts of one start of the job, by rank."""

    parts: dict[int, RankRecords] = field(default_factory=dict)
    end_ns: int = -FAR_NS
    """When the last of its parts ended, wall clock."""
    number: int = 1
    """From 1, those that are left out counted too."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """When each of its parts began and ended, wall clock."""

    def add(self, part: RankRecords, span: tuple[int, int]) -> None:
        """Take a part in, with its times."""
        self.parts[part.rank] = part
        self.spans.append(span)


class Joined(NamedTuple):
    """What is read of a job that may have had several attempts.

    Attributes:
        ranks: One set of records a rank.
        attempts: Those that they are from.
        replaced: Facts about the job that those of the newest attempt are replaced by, where
            that one is left out.
    """

    ranks: list[RankRecords]
    attempts: list[AttemptFacts]
    replaced: Mapping[str, Any]


def joined_attempts(parts: Mapping[int, Sequence[RankRecords]], limits: list[Note]) -> Joined:
    """Return one set of records a rank, and the attempts that they are from.

    Args:
        parts: The parts of each rank, oldest first.
        limits: What is left out or not known, extended in place.
    """
    attempts = find_attempts({rank: _not_empty(found, limits) for rank, found in parts.items()})
    for number, attempt in enumerate(attempts, 1):
        attempt.number = number
        align_steps(attempt.parts, limits)
    if len(attempts) < 2:
        alone = [part for attempt in attempts for _, part in sorted(attempt.parts.items())]
        return Joined(alone, _facts([attempt for attempt in attempts if attempt.parts]), {})
    every, newest = attempts, attempts[-1]
    attempts = _comparable(attempts, limits)
    replaced = {} if attempts[-1] is newest else _of_rank_0(attempts[-1], every)
    facts = _facts(attempts)
    limits += _stated(attempts, facts)
    for attempt in attempts:
        for part in attempt.parts.values():
            part.limits = [
                Note(one.code, {**one.values, ATTEMPT: attempt.number}) for one in part.limits
            ]
    shifts = Shifts()
    for attempt in attempts:
        shifts.move(attempt.parts, steps=_last_step(attempt) + 1)
    ranks = sorted({rank for attempt in attempts for rank in attempt.parts})
    joined = [
        concatenated(
            [attempt.parts[rank] for attempt in attempts if rank in attempt.parts],
            is_in_newest=rank in attempts[-1].parts,
        )
        for rank in ranks
    ]
    return Joined(joined, facts, replaced)


def steps_before(parts: Mapping[int, Sequence[RankRecords]]) -> dict[int, list[int | None]]:
    """Return how many steps of the job lie before each part of each rank.

    None where a part is left out. No part may have been attached while its process ran.

    Args:
        parts: The parts of each rank, oldest first; the records of steps are enough.
    """
    attempts = find_attempts({rank: _not_empty(found, []) for rank, found in parts.items()})
    before = 0
    known: dict[int, int] = {}
    for attempt in _comparable(attempts, []):
        known |= {id(part): before for part in attempt.parts.values()}
        before += _last_step(attempt) + 1
    return {rank: [known.get(id(part)) for part in found] for rank, found in parts.items()}


def find_attempts(parts: Mapping[int, Sequence[RankRecords]]) -> list[Attempt]:
    """Return the attempts of a job, oldest first.

    A part belongs to the newest attempt so far if that has none of its rank yet,
    and either its launcher said the same to both or they overlap in time. Where no
    rank has two parts, all are one attempt, whatever the clocks say.
    """
    times = PartTimes(part for found in parts.values() for part in found)
    if all(len(found) == 1 for found in parts.values()):
        only = Attempt()
        for (part,) in parts.values():
            only.add(part, times.span_ns(part))
        return [only]
    attempts: list[Attempt] = []
    placed = [timed for found in parts.values() for timed in _in_order(found, times)]
    for start_ns, end_ns, part in sorted(placed, key=lambda timed: timed[:2]):
        newest = attempts[-1] if attempts else None
        if newest is None or part.rank in newest.parts or not _belongs(part, start_ns, newest):
            newest = Attempt()
            attempts.append(newest)
        newest.add(part, times.span_ns(part))
        newest.end_ns = max(newest.end_ns, end_ns)
    return attempts


def _not_empty(parts: Sequence[RankRecords], limits: list[Note]) -> list[RankRecords]:
    """Return the parts of a rank of which anything could be read, one if there is none."""
    kept = [part for part in parts if not part.is_empty] or list(parts[:1])
    if len(kept) < len(parts):
        count = len(parts) - len(kept)
        limits.append(note("missing.attempts_of_rank", rank=parts[0].rank, attempts=count))
    return kept


def _in_order(parts: Sequence[RankRecords], times: PartTimes) -> list[tuple[int, int, RankRecords]]:
    """Return the parts of a rank with start and end; none begins before the one before it.

    A wall clock that was put back would otherwise change their order.
    """
    found = []
    least_ns = -FAR_NS
    for part in parts:
        start_ns, end_ns = times.span_ns(part)
        start_ns = max(start_ns, least_ns)
        found.append((start_ns, max(start_ns, end_ns), part))
        least_ns = start_ns + 1
    return found


def _belongs(part: RankRecords, start_ns: int, attempt: Attempt) -> bool:
    launch = _launch(part)
    same = launch is not None and launch in map(_launch, attempt.parts.values())
    again = attached_while_running(part)
    return (same and not again) or start_ns <= attempt.end_ns


def _launch(part: RankRecords) -> str | None:
    annotations = (part.manifest or {}).get("annotations")
    found = annotations.get("launch") if isinstance(annotations, dict) else None
    return found if isinstance(found, str) else None


def _comparable(attempts: list[Attempt], limits: list[Note]) -> list[Attempt]:
    """Leave out attempts whose numbers mean something else than those of the newest one."""
    if len(attempts) < 2:
        return attempts
    return _on_the_last_machine(_of_one_size(attempts, limits), limits)


def _of_one_size(attempts: list[Attempt], limits: list[Note]) -> list[Attempt]:
    """Leave out attempts with another number of ranks than the newest that recorded anything.

    The mesh, and with it what a rank computes and with whom it speaks, is another one then.
    """
    recorded = [one for one in attempts if any(part.tables for part in one.parts.values())]
    size = _world_size((recorded or attempts)[-1])
    kept = []
    for attempt in attempts:
        own = _world_size(attempt)
        if None in (own, size) or own == size:
            kept.append(attempt)
        else:
            limits.append(
                note("missing.attempt_of_other_size", attempt=attempt.number, own=own, size=size)
            )
    return kept


def _world_size(attempt: Attempt) -> int | None:
    stated = [(part.manifest or {}).get("world_size") for part in attempt.parts.values()]
    sizes = [size for size in stated if type(size) is int and 0 < size < _MOST_RANKS]
    return max(sizes, default=None)


def _of_rank_0(attempt: Attempt, every: Sequence[Attempt]) -> dict[str, Any]:
    """Return what rank 0 said of the job in an attempt; None for what only others said."""
    others = {name for other in every for name in _job_facts(other)}
    return {**dict.fromkeys(others), **_job_facts(attempt)}


def _job_facts(attempt: Attempt) -> Mapping[str, Any]:
    manifest = attempt.parts[0].manifest if 0 in attempt.parts else None
    annotations = (manifest or {}).get("annotations")
    facts = annotations.get(JOB_KEY) if isinstance(annotations, dict) else None
    return facts if isinstance(facts, dict) else {}


def _hosts(attempt: Attempt) -> str | None:
    named = [(part.manifest or {}).get("host") for _, part in sorted(attempt.parts.items())]
    return ",".join(dict.fromkeys(host for host in named if isinstance(host, str))) or None


def _on_the_last_machine(attempts: list[Attempt], limits: list[Note]) -> list[Attempt]:
    """Leave out attempts in which a rank ran on another machine than in the newest.

    Their times are on clocks that have nothing to do with those of the newest.
    """
    boots: dict[int, object] = {}
    for attempt in attempts:
        boots |= {rank: boot_of(part) for rank, part in attempt.parts.items()}
    kept = []
    for attempt in attempts:
        moved = [rank for rank, part in attempt.parts.items() if boot_of(part) != boots[rank]]
        if moved:
            limits.append(
                note("missing.attempt_elsewhere", attempt=attempt.number, ranks=sorted(moved))
            )
        else:
            kept.append(attempt)
    return kept


def _facts(attempts: Sequence[Attempt]) -> list[AttemptFacts]:
    """Return the attempts with their steps as they are numbered in the run."""
    facts = []
    shift = 0
    for attempt in attempts:
        last_step = _last_step(attempt)
        first_step = _first_step(attempt)
        parts = list(attempt.parts.values())
        said = [
            zero
            for part in parts
            if not attached_while_running(part)
            and (zero := stated_training_step(part.manifest)) is not None
        ]
        closed = [(part.manifest or {}).get("closed_unix_ns") for part in parts]
        failed = failed_first(parts)
        facts.append(
            AttemptFacts(
                attempt=attempt.number,
                first_step=shift + first_step,
                last_step=shift + last_step if last_step >= 0 else None,
                training_step=said[0] + first_step if said else None,
                start_unix_ns=min(start_ns for start_ns, _ in attempt.spans),
                end_unix_ns=max([attempt.end_ns, *(end_ns for _, end_ns in attempt.spans)]),
                ranks=len(parts),
                killed_ranks=closed.count(None),
                ended_rank=None if failed is None else failed.rank,
                wait_status=None if failed is None else failed.last_seen.wait_status,
                world_size=_world_size(attempt),
                hosts=_hosts(attempt),
            )
        )
        shift += last_step + 1
    return facts


def _stated(attempts: Sequence[Attempt], facts: Sequence[AttemptFacts]) -> list[Note]:
    """Return what a reader has to know about several attempts."""
    limits = []
    everybody = {rank for attempt in attempts for rank in attempt.parts}
    for before, one, attempt in zip([None, *facts], facts, attempts, strict=False):
        if before is not None:
            again = all(map(attached_while_running, attempt.parts.values()))
            limits.append(sequel(one, before, attached_again=again))
        absent = sorted(everybody - attempt.parts.keys())
        if absent:
            limits.append(note("missing.ranks_of_attempt", attempt=one.attempt, ranks=absent))
    return limits


def _first_step(attempt: Attempt) -> int:
    """Return the first step that any rank of an attempt finished, 0 if none."""
    return min(_steps(attempt), default=0)


def _last_step(attempt: Attempt) -> int:
    """Return the last step that any rank of an attempt finished, -1 if none."""
    return max(_steps(attempt), default=-1)


def _steps(attempt: Attempt) -> list[int]:
    """Return the first and the last step of each rank of an attempt."""
    ends = [
        pc.min_max(part.tables["step"]["step"]).as_py()
        for part in attempt.parts.values()
        if "step" in part.tables and part.tables["step"].num_rows
    ]
    return [int(end) for pair in ends for end in (pair["min"], pair["max"])]
