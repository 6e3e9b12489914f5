"""Whether a finding of a live job points to the place of its fault."""

from __future__ import annotations

from collections.abc import Mapping

from meshscope.analyze.tables.results import Finding
from meshscope.analyze.tables.trace import Trace


def is_place(place: Mapping[str, object], trace: Trace, finding: Finding) -> bool:
    """Return whether a finding names all of a place: rank, stage, axis, group or link."""
    where = finding.where
    wanted = dict(place)
    member = wanted.pop("member", None)
    if "rank" not in wanted and "ranks" not in wanted and "rank" in where:
        return False
    return all(where.get(key) == value for key, value in wanted.items()) and (
        member is None or member in _members(trace, finding)
    )


def _members(trace: Trace, finding: Finding) -> tuple[int, ...]:
    """Return the ends of the link, or the members of the group, that a finding names."""
    where = finding.where
    if "link" in where:
        return tuple(int(end) for end in where["link"].replace("<->", "->").split("->"))
    groups = trace.frame("group")
    members = dict(zip(groups["group_id"].astype(str), groups["ranks"], strict=True))
    return tuple(members.get(where.get("group_id", ""), ()))


def words(finding: Finding) -> str:
    """Return the place of a finding; all of these jobs run on one host."""
    shown = ("rank", "ranks", "stage", "axis", "group_id", "link")
    return ", ".join(f"{name} {finding.where[name]}" for name in shown if name in finding.where)
