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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .assemble import manifest_groups, manifest_names
from .attempt_table import AttemptFacts, absent_words, sequel_words, stated_training_step
from .rank_records import RankRecords
from .step_numbers import align_steps, attached_while_running

_LISTED = 8
_FAR_NS = 1 << 62


@dataclass(slots=True)
class Attempt:
    """The parts of one start of the job, by rank."""

    parts: dict[int, RankRecords] = field(default_factory=dict)
    end_ns: int = -_FAR_NS
    """When the last of its parts ended, wall clock."""

    @property
    def start_ns(self) -> int:
        """Return when the first of its parts began, wall clock."""
        return min(_span_ns(part)[0] for part in self.parts.values())


def joined_attempts(
    parts: Mapping[int, Sequence[RankRecords]], limits: list[str]
) -> tuple[list[RankRecords], list[AttemptFacts]]:
    """Return one set of records a rank, and the attempts that they are from.

    Args:
        parts: The parts of each rank, oldest first.
        limits: What is left out or not known, extended in place.
    """
    attempts = find_attempts({rank: _not_empty(found, limits) for rank, found in parts.items()})
    for attempt in attempts:
        align_steps(attempt.parts, limits)
    if len(attempts) < 2:
        alone = [part for attempt in attempts for _, part in sorted(attempt.parts.items())]
        return alone, _facts([attempt for attempt in attempts if attempt.parts])
    attempts = _on_the_last_machine(attempts, limits)
    facts = _facts(attempts)
    limits += _stated(attempts, facts)
    for number, attempt in enumerate(attempts, 1):
        for part in attempt.parts.values():
            part.limits = [limit.replace(": ", f": attempt {number}: ", 1) for limit in part.limits]
    shifts = _Shifts()
    for attempt in attempts:
        shifts.move(attempt)
    ranks = sorted({rank for attempt in attempts for rank in attempt.parts})
    joined = [
        _concatenated(
            [attempt.parts[rank] for attempt in attempts if rank in attempt.parts],
            is_in_newest=rank in attempts[-1].parts,
        )
        for rank in ranks
    ]
    return joined, facts


def find_attempts(parts: Mapping[int, Sequence[RankRecords]]) -> list[Attempt]:
    """Return the attempts of a job, oldest first.

    A part belongs to the newest attempt so far if that has none of its rank yet,
    and either its launcher said the same to both or they overlap in time. Where no
    rank has two parts, all are one attempt, whatever the clocks say.
    """
    if all(len(found) == 1 for found in parts.values()):
        return [Attempt({rank: part for rank, (part,) in parts.items()})]
    attempts: list[Attempt] = []
    placed = [timed for found in parts.values() for timed in _in_order(found)]
    for start_ns, end_ns, part in sorted(placed, key=lambda timed: timed[:2]):
        newest = attempts[-1] if attempts else None
        if newest is None or part.rank in newest.parts or not _belongs(part, start_ns, newest):
            newest = Attempt()
            attempts.append(newest)
        newest.parts[part.rank] = part
        newest.end_ns = max(newest.end_ns, end_ns)
    return attempts


def _not_empty(parts: Sequence[RankRecords], limits: list[str]) -> list[RankRecords]:
    """Return the parts of a rank of which anything could be read, one if there is none."""
    kept = [part for part in parts if not part.is_empty] or list(parts[:1])
    if len(kept) < len(parts):
        count = len(parts) - len(kept)
        limits.append(f"rank {parts[0].rank}: nothing can be read of {count} of its attempts")
    return kept


def _in_order(parts: Sequence[RankRecords]) -> list[tuple[int, int, RankRecords]]:
    """Return the parts of a rank with start and end; none begins before the one before it.

    A wall clock that was put back would otherwise change their order.
    """
    found = []
    least_ns = -_FAR_NS
    for part in parts:
        start_ns, end_ns = _span_ns(part)
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


def _span_ns(part: RankRecords) -> tuple[int, int]:
    """Return when a part began and ended, wall clock in ns; its last record if it was killed."""
    manifest = part.manifest or {}
    start, closed = manifest.get("started_unix_ns"), manifest.get("closed_unix_ns")
    start_ns = start if isinstance(start, int) else 0
    if isinstance(closed, int):
        return start_ns, max(start_ns, closed)
    pairs = manifest.get("clock_pairs")
    newest_ns = max((_newest_ns(table) for table in part.tables.values()), default=-_FAR_NS)
    if not isinstance(pairs, list) or not pairs or newest_ns == -_FAR_NS:
        return start_ns, start_ns
    monotonic_ns, unix_ns = pairs[-1][0], pairs[-1][1]
    return start_ns, max(start_ns, newest_ns - monotonic_ns + unix_ns)


def _newest_ns(table: pa.Table) -> int:
    names = [name for name in ("start_ns", "issue_ns", "time_ns") if name in table.column_names]
    times = [pc.max(table[name]).as_py() for name in names]
    return max((time for time in times if time is not None), default=-_FAR_NS)


def _on_the_last_machine(attempts: list[Attempt], limits: list[str]) -> list[Attempt]:
    """Leave out attempts in which a rank ran on another machine than in the newest.

    Their times are on clocks that have nothing to do with those of the newest.
    """
    boots: dict[int, object] = {}
    for attempt in attempts:
        boots |= {rank: _boot(part) for rank, part in attempt.parts.items()}
    kept = []
    for number, attempt in enumerate(attempts, 1):
        moved = [rank for rank, part in attempt.parts.items() if _boot(part) != boots[rank]]
        if moved:
            listed = ", ".join(map(str, moved[:_LISTED]))
            limits.append(
                f"attempt {number} of the job is left out: ranks {listed} ran on other machines "
                "then, whose clocks cannot be compared with those of the last attempt"
            )
        else:
            kept.append(attempt)
    return kept


def _boot(part: RankRecords) -> object:
    manifest = part.manifest or {}
    return manifest.get("boot_id") or manifest.get("host")


def _facts(attempts: Sequence[Attempt]) -> list[AttemptFacts]:
    """Return the attempts with their steps as they are numbered in the run."""
    facts = []
    shift = 0
    for number, attempt in enumerate(attempts, 1):
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
        facts.append(
            AttemptFacts(
                attempt=number,
                first_step=shift + first_step,
                last_step=shift + last_step if last_step >= 0 else None,
                training_step=said[0] + first_step if said else None,
                start_unix_ns=attempt.start_ns,
                end_unix_ns=max(attempt.end_ns, *(_span_ns(part)[1] for part in parts)),
                ranks=len(parts),
                killed_ranks=closed.count(None),
            )
        )
        shift += last_step + 1
    return facts


def _stated(attempts: Sequence[Attempt], facts: Sequence[AttemptFacts]) -> list[str]:
    """Return what a reader has to know about several attempts."""
    limits = []
    everybody = {rank for attempt in attempts for rank in attempt.parts}
    for before, one, attempt in zip([None, *facts], facts, attempts, strict=False):
        if before is not None:
            again = all(map(attached_while_running, attempt.parts.values()))
            limits.append(sequel_words(one, before, attached_again=again))
        absent = sorted(everybody - attempt.parts.keys())
        if absent:
            limits.append(absent_words(one.attempt, absent))
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


_SLOT_COLUMNS = ("slot_seq", "event_id", "end_seq")
"""Columns that count the records of one part."""


class _Shifts:
    """How far the numbers of the next attempt are moved."""

    def __init__(self) -> None:
        self._steps = 0
        self._slots: dict[int, int] = {}
        self._operations: dict[str, int] = {}

    def move(self, attempt: Attempt) -> None:
        """Move the numbers of an attempt behind those of the attempts so far.

        A part that was attached while its process ran took the numbers of
        collectives from the backend, which kept counting: these stay.
        """
        last_step = _last_step(attempt)
        ends: dict[str, int] = {}
        for rank, part in attempt.parts.items():
            groups = manifest_names(part.manifest)[0]
            counted = not attached_while_running(part)
            for name, table in part.tables.items():
                moved = self._moved(table, rank, groups, counted=counted)
                part.tables[name] = moved
                for group_id, end in _ends_of_groups(moved, groups).items():
                    ends[group_id] = max(end, ends.get(group_id, 0))
            newest = [int(pc.max(table["slot_seq"]).as_py()) for table in part.tables.values()]
            self._slots[rank] = max(newest, default=self._slots.get(rank, 0) - 1) + 1
        self._steps += last_step + 1
        for group_id, end in ends.items():
            self._operations[group_id] = max(end, self._operations.get(group_id, 0))

    def _moved(
        self, table: pa.Table, rank: int, groups: Mapping[int, str], *, counted: bool
    ) -> pa.Table:
        for name in _SLOT_COLUMNS:
            if name in table.column_names:
                table = _plus(table, name, self._slots.get(rank, 0))
        if "step" in table.column_names:
            table = _plus(table, "step", self._steps)
        if counted and "seq" in table.column_names and "group" in table.column_names:
            codes = table["group"].to_numpy()
            by_code = {code: self._operations.get(name, 0) for code, name in groups.items()}
            shift = np.array([by_code.get(int(code), 0) for code in np.unique(codes)])
            table = _plus(table, "seq", shift[np.searchsorted(np.unique(codes), codes)])
        return table


def _plus(table: pa.Table, name: str, amount: Any) -> pa.Table:
    place = table.column_names.index(name)
    kind = table.schema.field(place)
    moved = np.asarray(table[name].to_numpy()) + amount
    return table.set_column(place, kind, pa.array(moved, kind.type))


def _ends_of_groups(table: pa.Table, groups: Mapping[int, str]) -> dict[str, int]:
    """Return one more than the highest number of an operation, by group."""
    if "seq" not in table.column_names or "group" not in table.column_names:
        return {}
    ends = table.group_by("group").aggregate([("seq", "max")]).to_pylist()
    return {groups[row["group"]]: int(row["seq_max"]) + 1 for row in ends if row["group"] in groups}


def _concatenated(parts: Sequence[RankRecords], *, is_in_newest: bool) -> RankRecords:
    """Return the parts of a rank as one, with the manifest of the newest."""
    names = _Names(parts[-1].manifest)
    pieces: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.tables.items():
            pieces.setdefault(name, []).append(names.translated(table, part.manifest))
    manifest = names.manifest()
    if manifest is not None:
        newest = [int(pc.min(table["slot_seq"]).as_py()) for table in parts[-1].tables.values()]
        first_event_id = min(newest, default=0)
        manifest["newest_attempt"] = {"recorded": is_in_newest, "first_event_id": first_event_id}
    return replace(
        parts[-1],
        manifest=manifest,
        tables={name: pa.concat_tables(found) for name, found in pieces.items()},
        limits=[limit for part in parts for limit in part.limits],
    )


class _Names:
    """Groups and element types of several parts under common numbers."""

    def __init__(self, newest: Mapping[str, Any] | None) -> None:
        self._newest = newest
        self._groups: dict[str, dict[str, Any]] = {}
        self._dtypes: list[str] = []

    def translated(self, table: pa.Table, manifest: Mapping[str, Any] | None) -> pa.Table:
        """Return records with the common numbers; what has no name keeps none (-1)."""
        for column, codes in (("group", self._group_codes), ("dtype", self._dtype_codes)):
            if column in table.column_names:
                known = codes(manifest or {})
                found, places = np.unique(table[column].to_numpy(), return_inverse=True)
                common = np.array([known.get(int(code), -1) for code in found], dtype=np.int64)
                place = table.column_names.index(column)
                kind = table.schema.field(place)
                table = table.set_column(place, kind, pa.array(common[places], kind.type))
        return table

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the newest part with the common names."""
        if self._newest is None:
            return None
        return {**self._newest, "groups": list(self._groups.values()), "dtypes": self._dtypes}

    def _group_codes(self, manifest: Mapping[str, Any]) -> dict[int, int]:
        codes = {}
        for group in manifest_groups(manifest):
            name = group["group_id"]
            common = self._groups.setdefault(name, {**group, "index": len(self._groups)})
            codes[int(group["index"])] = int(common["index"])
        return codes

    def _dtype_codes(self, manifest: Mapping[str, Any]) -> dict[int, int]:
        codes = {}
        for code, name in enumerate(manifest_names(manifest)[1]):
            if name not in self._dtypes:
                self._dtypes.append(name)
            codes[code] = self._dtypes.index(name)
        return codes
