"""How our answers are found in what meshscope writes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from tests.truth.foreign.case import Answer, Check, Reply

DESIGN = {"pipeline_bubble", "exposed_communication", "missing_data", "slow_wire", "clock_skew"}
"""Findings about the job's design or the capture; they name no fault of a place."""
OF_THE_MACHINE = "contention"
"""What else ran on the machine that tries a case is no part of it, and is rightly told first."""
SLOW = {"straggler_rank", "other_slow_ranks", "clock_throttle", "slow_group"}
STAGE = {"stage_imbalance", "embedding_imbalance"}
NOTHING = "nothing"


def says(what: str, pattern: str, *, first: bool = False) -> Check:
    """Expect words in the findings and limits, or in the first finding."""

    def read(reply: Reply) -> Answer:
        text = _first_text(reply) if first else _all_text(reply)
        return "yes" if re.search(pattern, text, re.I | re.S) else "no"

    return Check(what, "yes", read)


def never_says(what: str, pattern: str) -> Check:
    """Expect that these words are nowhere."""

    def read(reply: Reply) -> Answer:
        return "yes" if re.search(pattern, _all_text(reply), re.I | re.S) else "no"

    return Check(what, "no", read)


def cost(what: str, right: float, within: float, *kinds: str) -> Check:
    """Expect the cost of the first finding (of a kind, if given), in per cent of the step."""

    def read(reply: Reply) -> Answer:
        found = [f for f in reply.data["findings"] if not kinds or f["kind"] in kinds]
        return 100 * found[0]["cost_frac"]

    return Check(what, right, read, within)


def first_fault(right: str) -> Check:
    """Expect the first finding that is a fault, as ``kind`` or ``kind rank 3``."""

    def read(reply: Reply) -> Answer:
        reported = [*names(reply), NOTHING][0]
        return right if right == reported.partition(" ")[0] else reported

    return Check("first fault found", right, read)


def names(reply: Reply) -> list[str]:
    """Return kind and place of the findings that are faults, such as ``straggler_rank rank 3``."""
    reported = []
    for finding in reply.data["findings"]:
        if finding["kind"] not in DESIGN and finding.get("cause") != OF_THE_MACHINE:
            where = finding["where"]
            place = next((f" {k} {where[k]}" for k in ("rank", "ranks", "stage") if k in where), "")
            reported.append(
                ("stage_imbalance" if finding["kind"] in STAGE else finding["kind"]) + place
            )
    return reported


def no_slow_rank(most: float = 2.0) -> Check:
    """Expect that no rank is blamed: the most that repairing one is said to return, per cent."""
    return Check("most promised for a rank, %", 0.0, lambda reply: largest_healthy(reply, ()), most)


def largest_healthy(reply: Reply, slow: Collection[int]) -> float:
    """Return the most that the repair of a healthy rank is said to return or cost, per cent."""
    reported = [0.0]
    for finding in [*reply.data["causes"], *reply.data["findings"]]:
        where = finding["where"]
        ranks = [where["rank"]] if "rank" in where else where.get("ranks", [])
        if finding["kind"] in SLOW and ranks and not set(ranks) <= set(slow):
            reported.append(100 * (finding.get("removal_gain_frac") or 0.0))
    return max(reported)


def cause(reply: Reply, kinds: Collection[str], key: str, **where: object) -> float | None:
    """Return a number of a cause in per cent; 0 if it is none, None where there are no causes."""
    if not reply.data["causes"]:
        return None
    for one in reply.data["causes"]:
        if one["kind"] in kinds and _is_at(one["where"], where):
            return 100 * one[key]
    return 0.0


def _is_at(reported: dict[str, Any], where: dict[str, object]) -> bool:
    if "rank" in where and "ranks" in reported:
        return where["rank"] in reported["ranks"]
    return all(reported.get(key) == value for key, value in where.items())


def step_ms(right: float, within: float) -> Check:
    """Expect the mean step time."""
    return Check("step, ms", right, lambda reply: reply.data["step_time_ns"] / 1e6, within)


def bar(name: str, right: float, within: float) -> Check:
    """Expect a class of the waterfall, per cent of the step."""

    def read(reply: Reply) -> Answer:
        return 100 * sum(b["frac"] for b in reply.data["waterfall"] if b["class"].startswith(name))

    return Check(f"{name}, %", right, read, within)


def column(table: str, name: str, row: int, right: float, within: float, scale: float = 1) -> Check:
    """Expect a number of a table of the report; ``row`` is a rank or the place of the row."""

    def read(reply: Reply) -> Answer:
        rows = {one.get("rank", place): one for place, one in enumerate(reply.data[table])}
        return rows[row][name] * scale

    return Check(f"{table} {row} {name}", right, read, within)


def fails() -> Check:
    """Expect that the command ends in an error."""
    return Check("ends in an error", "yes", lambda reply: "yes" if reply.status > 0 else "no")


def _first_text(reply: Reply) -> str:
    return " ".join(_strings(reply.data["findings"][0]))


def _all_text(reply: Reply) -> str:
    return reply.text if reply.data is None else " ".join(_strings(reply.data)) + reply.text


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)
