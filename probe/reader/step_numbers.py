"""Makes the step numbers of ranks agree that were attached while the job ran.

Each rank counts steps from the moment at which its hooks went in, and no two ranks
get them in the same moment. Collectives tell which steps belong together: their
numbers come from the backend, which counts alike on all members::

    rank 0    step 3: all-reduce 17    step 4: all-reduce 18
    rank 1    step 2: all-reduce 17    step 3: all-reduce 18      rank 1 + 1 = rank 0

Messages are counted by the probe from zero at each end, so they are numbered anew
from the steps. The first step of a rank is not whole; steps before the first one
that all ranks have from its beginning are left out, and that is stated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.note import Note, note
from .assemble import manifest_names
from .rank_records import RankRecords
from .shifts import joined_shifts

Ints = NDArray[np.int64]


def attached_while_running(part: RankRecords) -> bool:
    """Tell whether a part began in the middle of its process."""
    annotations = (part.manifest or {}).get("annotations")
    return isinstance(annotations, dict) and bool(annotations.get("attached_while_running"))


def align_steps(parts: Mapping[int, RankRecords], limits: list[Note]) -> None:
    """Renumber the steps of one attempt in place if a rank was attached while it ran.

    Args:
        parts: What each rank recorded.
        limits: What is left out or cannot be known, extended in place.
    """
    if len(parts) < 2 or not any(map(attached_while_running, parts.values())):
        return
    shifts = _step_shifts(parts)
    unknown = sorted(parts.keys() - shifts.keys())
    if unknown:
        limits.append(note("doubt.attached_apart", ranks=unknown))
    least = min(shifts.values(), default=0)
    first_step = 0
    for rank, shift in shifts.items():
        part = parts[rank]
        _add(part, "step", shift - least)
        first_step = max(first_step, _first_step(part) + 1)
    dropped = sum(_drop_before(parts[rank], first_step) for rank in shifts)
    if dropped:
        limits.append(note("missing.before_all_attached", lost=dropped))
    _renumber_messages({rank: parts[rank] for rank in shifts})


def _step_shifts(parts: Mapping[int, RankRecords]) -> dict[int, int]:
    """Return what is added to the steps of each rank that can be compared with the lowest."""
    by_group: dict[str, dict[int, tuple[Ints, Ints]]] = defaultdict(dict)
    for rank, part in parts.items():
        for group_id, numbers in _numbers_and_steps(part).items():
            by_group[group_id][rank] = numbers
    offsets = []
    for members in by_group.values():
        reference = min(members)
        for rank in members.keys() - {reference}:
            shift = _shift(members[reference], members[rank])
            if shift is not None:
                offsets.append((reference, rank, shift))
    return joined_shifts(min(parts), offsets)


def _numbers_and_steps(part: RankRecords) -> dict[str, tuple[Ints, Ints]]:
    """Return number and step of the collectives on each group."""
    table = part.tables.get("collective")
    if table is None:
        return {}
    groups, _ = manifest_names(part.manifest)
    codes, seq, step = (_ints(table, name) for name in ("group", "seq", "step"))
    return {
        groups[int(code)]: (seq[codes == code], step[codes == code])
        for code in np.unique(codes)
        if int(code) in groups
    }


def _shift(reference: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> int | None:
    """Return the commonest difference of the steps of equal numbers; None without any."""
    _, here, there = np.intersect1d(reference[0], other[0], return_indices=True)
    if not len(here):
        return None
    differences, counts = np.unique(reference[1][here] - other[1][there], return_counts=True)
    return int(differences[np.argmax(counts)])


def _first_step(part: RankRecords) -> int:
    steps = [
        int(_ints(table, "step").min())
        for table in part.tables.values()
        if "step" in table.column_names and table.num_rows
    ]
    return min(steps, default=-1) if attached_while_running(part) else -1


def _drop_before(part: RankRecords, first_step: int) -> int:
    """Leave out the records of earlier steps; return how many that are."""
    dropped = 0
    gone: list[Ints] = []
    for name, table in list(part.tables.items()):
        if "step" in table.column_names:
            early = _ints(table, "step") < first_step
            if early.any():
                gone.append(_ints(table, "slot_seq")[early])
                dropped += int(early.sum())
                part.tables[name] = table.filter(pa.array(~early))
    completions = part.tables.get("completion")
    if gone and completions is not None:
        stray = np.isin(_ints(completions, "event_id"), np.concatenate(gone))
        part.tables["completion"] = completions.filter(pa.array(~stray))
    part.tables = {name: table for name, table in part.tables.items() if table.num_rows}
    return dropped


def _renumber_messages(parts: Mapping[int, RankRecords]) -> None:
    """Number the messages from each rank to each other in the order of their steps.

    Both ends of a channel begin at zero with the first step that is whole on all.
    """
    for part in parts.values():
        table = part.tables.get("p2p")
        if table is None or not table.num_rows:
            continue
        names = ("group", "peer", "direction", "seq")
        group, peer, direction, seq = (_ints(table, name) for name in names)
        channel = np.stack([group, peer, direction], axis=1)
        _, places = np.unique(channel, axis=0, return_inverse=True)
        places = places.reshape(-1)
        least = np.full(int(places.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, places, seq)
        part.tables["p2p"] = _with(table, "seq", seq - least[places])


def _add(part: RankRecords, name: str, amount: int) -> None:
    for key, table in part.tables.items():
        if name in table.column_names:
            part.tables[key] = _with(table, name, _ints(table, name) + amount)


def _with(table: pa.Table, name: str, values: Ints) -> pa.Table:
    place = table.column_names.index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(values, field.type))


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)
