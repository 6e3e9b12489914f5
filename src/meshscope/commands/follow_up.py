"""What to run after a diagnosis: the verb that takes up its first finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshscope.probe.schema.terms import Axis, FindingKind

if TYPE_CHECKING:
    from meshscope.analyze.tables.results import Diagnosis, Finding

_MOST_RANKS = 8
"""A command with more of them is no line that anybody reads."""
_OF_RANKS = (FindingKind.STRAGGLER_RANK, FindingKind.CLOCK_THROTTLE)
_OF_STAGES = (FindingKind.STAGE_IMBALANCE, FindingKind.EMBEDDING_IMBALANCE)
_BY_NAME = (
    FindingKind.SEQUENCE_IMBALANCE,
    FindingKind.GC_PAUSE,
    FindingKind.DATA_STALL,
    FindingKind.CHECKPOINT_STALL,
    FindingKind.HOST_STALL,
    FindingKind.JITTER,
)
"""Causes that ``whatif --fix`` knows by the name of their finding."""


def follow_up(result: Diagnosis) -> tuple[str, ...]:
    """Return a verb and its options for the first finding that has one; empty if none has.

    Of a standstill it is who was missing from which collective, of a loss of time what its
    repair would return, as far as the run can be replayed.
    """
    return next((words for finding in result.findings for words in _words(finding, result)), ())


def _words(finding: Finding, result: Diagnosis) -> Iterator[tuple[str, ...]]:
    if finding.kind in (FindingKind.HANG, FindingKind.CRASH, FindingKind.JOB_ENDED):
        yield ("collectives",)
    elif result.model_error_frac is not None and (change := _change(finding, result)):
        yield ("whatif", *change)


def _change(finding: Finding, result: Diagnosis) -> list[str]:
    """Return the options that repair what a finding is about, or change it."""
    kind, where = finding.kind, finding.where
    if kind in _OF_RANKS:
        ranks = where.get("ranks") or ([where["rank"]] if "rank" in where else [])
        if len(ranks) == 1 and _has_no_peer(ranks[0], result):
            return ["--fix", f"stage={where['stage']}"] if "stage" in where else []
        if len(ranks) > _MOST_RANKS:
            return ["--fix", f"host={where['host']}"] if "host" in where else []
        return [word for rank in ranks for word in ("--fix", f"rank={rank}")]
    if kind in _OF_STAGES:
        return ["--fix", f"stage={where['stage']}"] if "stage" in where else []
    if kind is FindingKind.SLOW_LINK:
        places = {"link": where.get("link"), "group": where.get("group_id")}
        return next((["--fix", f"{name}={place}"] for name, place in places.items() if place), [])
    if kind is FindingKind.EXPOSED_COMMUNICATION and where.get("axis") not in (None, Axis.OTHER):
        return ["--set", f"link.{where['axis']}=2x"]
    microbatches = result.run.get("microbatches")
    if kind is FindingKind.PIPELINE_BUBBLE and isinstance(microbatches, int):
        return ["--set", f"microbatches={2 * microbatches}"]
    # What the replay gave no price to, such as time that nothing recorded, it cannot repair.
    is_priced = finding.removal_gain_frac is not None
    return ["--fix", kind.value] if kind in _BY_NAME and is_priced else []


def _has_no_peer(rank: int, result: Diagnosis) -> bool:
    """Return whether no other rank has the same stage: then nothing tells what it should take."""
    stage = result.stragglers.set_index("rank")["pp"]
    return bool((stage == stage[rank]).sum() == 1)
