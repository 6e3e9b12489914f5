"""JSON forms of a large run: its segments, and the first answer about it."""

from __future__ import annotations

from typing import Any

from ...scale.compact import Compacted
from ...scale.slow_ranks import FirstAnswer, SlowRank
from ...scale.store import Summaries
from ...wording.limits import limits_to_json
from ...wording.message import message_to_json


def summaries_to_json(made: Summaries, answer: FirstAnswer) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    return {
        "version": 1,
        "run": answer.run,
        "folder": str(made.folder),
        "rows": made.rows,
        "size_bytes": made.size_bytes,
        "ranks": answer.ranks,
        "steps": list(answer.steps),
        "step_count": answer.step_count,
        "step_time_ns": answer.step_ns,
        "slow": list(map(slow_rank_to_json, answer.slow)),
        "minimum_slowdown": answer.minimum_slowdown,
        **limits_to_json(answer.limits),
    }


def slow_rank_to_json(one: SlowRank) -> dict[str, Any]:
    """Return one slow rank with its price."""
    verdict = one.verdict
    unknown = one.price.unknown
    return {
        "rank": verdict.rank,
        "first_bad_step": verdict.first_bad_step,
        "last_bad_step": verdict.last_bad_step,
        "slow_steps": [list(run) for run in verdict.slow_steps],
        "persistence": verdict.persistence.value,
        "evidence": verdict.evidence.value,
        "slowdown": verdict.slowdown,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "confidence": verdict.confidence,
        "ambiguous_with": list(verdict.ambiguous_with),
        "return_ns": one.price.return_ns,
        "return_unknown": unknown and str(unknown),
        "return_unknown_message": unknown and message_to_json(unknown),
        "most_ns": one.price.most_ns,
        "step_after_ns": one.step_after_ns,
    }


def compacted_to_json(made: Compacted) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    return {
        "version": 1,
        "run": made.run.name,
        "ranks": made.ranks,
        "rows": made.rows,
        "dropped_rows": made.dropped_rows,
        "kept_steps": list(made.kept_steps[0]) if len(made.kept_steps) == 1 else None,
        "kept_ranges": [list(one) for one in made.kept_steps],
        "files_before": made.files_before,
        "files_after": made.files_after,
        "bytes_before": made.bytes_before,
        "bytes_after": made.bytes_after,
    }
