"""Turns the communication records of a step into sums, once the step is over.

This runs in the writer thread, on whole batches: the hooks and the ring know
nothing of it, and the ring holds every record. A step is summed when the second step
after it has ended: until then the end of an operation may still be reported, by a device too that is behind
its host. What reaches into a step that is kept in full is kept itself.

Of some steps every communication record goes to disk. The choice looks at the number of the step alone, so that all ranks keep the same
steps without talking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..schema.errors import ConfigError
from ..schema.message import message
from ..schema.records import COMMUNICATION_SUM_RECORD, NO_WORD, SPAN_CODES
from ..schema.terms import COMPUTE_KINDS, CollectiveKind, SpanKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.void]
    Ints = NDArray[np.int64]


FULL_RECORDS = "full_records"
"""Annotation of a rank that says which steps have them."""


@dataclass(frozen=True, slots=True)
class FullRecords:
    """The steps whose communication is kept record by record."""

    first_steps: int = 0
    """All steps before this one …"""
    every_steps: int = 1
    """… and of the later ones each whose number this divides; 0 for none."""

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ConfigError: A number is negative.
        """
        for name, value in asdict(self).items():
            if value < 0:
                raise ConfigError(message("refused.below_0"), where=f"full_records.{name}")

    @property
    def are_all(self) -> bool:
        """Tell whether no step is kept as sums."""
        return self.every_steps == 1

    def of(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each step whether its records are kept."""
        kept: NDArray[np.bool_] = steps < self.first_steps
        if self.every_steps:
            kept |= steps % self.every_steps == 0
        return kept


_ISSUES = ("collective", "p2p")
_MOST_PENDING = 1 << 18
"""Records that may wait for the end of their step; with more, all are kept in full."""
_LATE_STEPS = 1
"""So many steps after the next one has ended an end may still be reported."""
_FIRST_DIRECTION = len(CollectiveKind)


class Fold:
    """Holds back what will be summed.

    Attributes:
        kept_out: Records held back or summed since the last look; set it to 0 then.
        too_late: Ends that were reported after their operation was summed, likewise.
    """

    def __init__(self, full: FullRecords) -> None:
        self._full = full
        self._issues: dict[str, list[Rows]] = {name: [] for name in _ISSUES}
        self._completions: list[Rows] = []
        self._spans: list[Rows] = []
        self._step_ends: dict[int, int] = {}
        self._pending = 0
        self._summed_ids: Ints | None = None
        self.kept_out = 0
        self.too_late = 0

    def take(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """Return what is to be written now of newly drained records, by record name."""
        if self._full.are_all:
            return dict(rows)
        written = {name: part for name, part in rows.items() if name not in _ISSUES}
        for step in rows.get("step", ()):
            self._step_ends[int(step["step"])] = int(step["start_ns"] + step["dur_ns"])
        self._hold_spans(rows.get("span"))
        for name in _ISSUES:
            if name in rows:
                self._hold_issues(name, rows[name], written)
        if "completion" in rows:
            self._hold_completions(rows["completion"], written)
        if self._pending > _MOST_PENDING:
            return joined(written, self._release())
        if self._step_ends:
            newest = max(self._step_ends) - _LATE_STEPS
            joined(written, self._sum(newest))
            self._forget(newest)
        return written

    def finish(self) -> dict[str, Rows]:
        """Return the sums of all that is held back: no more records follow."""
        return {} if self._full.are_all else self._sum(None)

    def _hold_spans(self, spans: Rows | None) -> None:
        import numpy as np

        if spans is None:
            return
        codes = [SPAN_CODES[kind] for kind in COMPUTE_KINDS]
        chosen = np.isin(spans["kind"], codes) & ~self._full.of(spans["step"])
        if chosen.any():
            self._spans.append(spans[chosen])

    def _hold_issues(self, name: str, issues: Rows, written: dict[str, Rows]) -> None:
        full = self._full.of(issues["step"])
        if full.any():
            written[name] = issues[full]
        if not full.all():
            held = issues[~full]
            self._issues[name].append(held)
            self._pending += len(held)
            self.kept_out += len(held)

    def _hold_completions(self, completions: Rows, written: dict[str, Rows]) -> None:
        import numpy as np

        held_ids = [part["slot_seq"] for parts in self._issues.values() for part in parts]
        wanted = completions["event_id"]
        held = (
            np.isin(wanted, np.concatenate(held_ids)) if held_ids else np.zeros(len(wanted), bool)
        )
        late = np.zeros(len(wanted), bool)
        if self._summed_ids is not None:
            late = np.isin(wanted, self._summed_ids)
        if held.any():
            self._completions.append(completions[held])
            self._pending += int(held.sum())
        self.too_late += int(late.sum())
        self.kept_out += int((held | late).sum())
        rest = completions[~(held | late)]
        written.pop("completion")
        if len(rest):
            written["completion"] = rest

    def _release(self) -> dict[str, Rows]:
        """Return all that is held back as it is: too much of it waits for a step to end."""
        found: dict[str, Rows] = {}
        for name, parts in (*self._issues.items(), ("completion", self._completions)):
            if parts:
                found[name] = _concatenated(parts)
                parts.clear()
        self._spans.clear()
        self._pending = 0
        return found

    def _sum(self, newest: int | None) -> dict[str, Rows]:
        """Return the sums of the steps before the newest that has ended; None is all steps."""
        import numpy as np

        ready: dict[str, Rows] = {}
        for name, parts in self._issues.items():
            if not parts:
                continue
            held = _concatenated(parts)
            is_ready = np.ones(len(held), bool) if newest is None else held["step"] < newest
            self._issues[name] = [held[~is_ready]] if not is_ready.all() else []
            if is_ready.any():
                ready[name] = held[is_ready]
        if not ready:
            return {}
        ids = np.sort(np.concatenate([part["slot_seq"] for part in ready.values()]))
        completions = self._completions_of(ids)
        self._summed_ids = ids
        self._pending -= len(ids) + (0 if completions is None else len(completions))
        events = _Events(ready, completions)
        written = self._reaching_into_full_steps(ready, completions, events)
        written[COMMUNICATION_SUM_RECORD.name] = _sums(events, self._spans)
        return written

    def _completions_of(self, ids: Ints) -> Rows | None:
        import numpy as np

        if not self._completions:
            return None
        held = _concatenated(self._completions)
        own = np.isin(held["event_id"], ids)
        self._completions = [held[~own]] if not own.all() else []
        return held[own] if own.any() else None

    def _reaching_into_full_steps(
        self, ready: Mapping[str, Rows], completions: Rows | None, events: _Events
    ) -> dict[str, Rows]:
        """Return the records of operations that were waited for in a step kept in full."""
        import numpy as np

        steps = np.unique(events.step)
        ends = np.array([self._step_ends.get(int(step), 1 << 62) for step in steps])
        into_full = self._full.of(steps + 1)[np.searchsorted(steps, events.step)]
        after = events.wait_end_ns > ends[np.searchsorted(steps, events.step)]
        ids = events.event_id[into_full & after]
        found: dict[str, Rows] = {}
        if not len(ids) or completions is None:
            return found
        for name, rows in ready.items():
            if (own := np.isin(rows["slot_seq"], ids)).any():
                found[name] = rows[own]
        found["completion"] = completions[np.isin(completions["event_id"], ids)]
        return found

    def _forget(self, newest: int) -> None:
        """Drop spans and step ends that no held record can need."""
        kept = [part[part["step"] >= newest] for part in self._spans]
        self._spans = [part for part in kept if len(part)]
        self._step_ends = {step: end for step, end in self._step_ends.items() if step >= newest - 1}


class _Events:
    """Operations with their times, in one set of columns; an unknown time is 0."""

    def __init__(self, issues: Mapping[str, Rows], completions: Rows | None) -> None:
        import numpy as np

        parts = list(issues.items())

        def column(name: str) -> Ints:
            return np.concatenate([part[name] for _, part in parts]).astype(np.int64)

        self.event_id = column("slot_seq")
        self.step = column("step")
        self.group = column("group")
        self.size_bytes = column("size_bytes")
        self.issue_ns = column("issue_ns")
        self.peer = np.concatenate(
            [part["peer"] if name == "p2p" else np.full(len(part), -1) for name, part in parts]
        ).astype(np.int64)
        self.operation = np.concatenate(
            [
                part["direction"].astype(np.int64) + _FIRST_DIRECTION
                if name == "p2p"
                else part["kind"].astype(np.int64)
                for name, part in parts
            ]
        )
        self.end_ns, self.wait_start_ns, self.wait_end_ns = (
            self._times(name, completions) for name in ("end_ns", "wait_start_ns", "wait_end_ns")
        )

    def _times(self, name: str, completions: Rows | None) -> Ints:
        """Return a time of each operation; of several that were reported the last known one."""
        import numpy as np

        times = np.zeros(len(self.event_id), np.int64)
        if completions is None:
            return times
        order = np.argsort(self.event_id)
        known = completions[completions[name] > 0]
        rows = order[np.searchsorted(self.event_id[order], known["event_id"])]
        times[rows] = known[name]
        return times


def _sums(events: _Events, spans: list[Rows]) -> Rows:
    """Return one sum record for each kind of operation, size, place and step."""
    import numpy as np

    size_log2 = np.full(len(events.step), -1, np.int64)
    some = events.size_bytes > 0
    size_log2[some] = np.log2(events.size_bytes[some].astype(np.float64)).astype(np.int64)
    ended, waited = events.end_ns > 0, (events.wait_start_ns > 0) & (events.wait_end_ns > 0)
    within = _spans_around(events.wait_start_ns, waited, spans)
    key = np.stack(
        [events.step, events.group, events.peer, events.operation, size_log2, within], axis=1
    )
    kinds, member = np.unique(key, axis=0, return_inverse=True)
    member = member.reshape(-1)
    found = np.zeros(len(kinds), COMMUNICATION_SUM_RECORD.numpy_dtype())
    found["code"] = COMMUNICATION_SUM_RECORD.code
    for position, name in enumerate(("step", "group", "peer", "operation", "size_log2", "within")):
        found[name] = kinds[:, position]
    found["slot_seq"] = _reduced(np.minimum, events.event_id, member, len(kinds), 1 << 62)
    found["count"] = np.bincount(member, minlength=len(kinds))
    found["size_bytes"] = _reduced(np.add, events.size_bytes, member, len(kinds), 0)
    for name, count, known, length in (
        ("dur_ns", "ended", ended, events.end_ns - events.issue_ns),
        ("wait_ns", "waited", waited, events.wait_end_ns - events.wait_start_ns),
    ):
        own, values = member[known], length[known]
        found[count] = np.bincount(own, minlength=len(kinds))
        found[name] = _reduced(np.add, values, own, len(kinds), 0)
        found[f"min_{name}"] = _reduced(np.minimum, values, own, len(kinds), 1 << 62)
        found[f"max_{name}"] = _reduced(np.maximum, values, own, len(kinds), 0)
        found[f"min_{name}"][found[count] == 0] = 0
    return found


def _reduced(reduce: np.ufunc, values: Ints, member: Ints, kinds: int, start: int) -> Ints:
    import numpy as np

    found = np.full(kinds, start, np.int64)
    reduce.at(found, member, values)
    return found


def _spans_around(times: Ints, known: NDArray[np.bool_], spans: list[Rows]) -> Ints:
    """Return the kind of the compute span around each time, ``NO_WORD`` where there is none.

    Of compute spans only recomputation lies in another one, so it is looked at first.
    """
    import numpy as np

    found = np.full(len(times), NO_WORD, np.int64)
    if not spans:
        return found
    table = _concatenated(spans)
    inner = table["kind"] == SPAN_CODES[SpanKind.RECOMPUTE]
    for part in (table[~inner], table[inner]):
        if len(part):
            part = part[np.argsort(part["start_ns"], kind="stable")]
            place = np.searchsorted(part["start_ns"], times, side="right") - 1
            inside = known & (place >= 0)
            inside &= times < (part["start_ns"] + part["dur_ns"])[place]
            found[inside] = part["kind"][place][inside]
    return found


def _concatenated(parts: list[Rows]) -> Rows:
    import numpy as np

    return np.concatenate(parts)


def joined(first: dict[str, Rows], second: Mapping[str, Rows]) -> dict[str, Rows]:
    """Add records to others of the same names, behind them; return these."""
    for name, rows in second.items():
        first[name] = _concatenated([first[name], rows]) if name in first else rows
    return first
