"""What a run of many ranks shows at first sight, kept beside its summaries: the first answer and two small tables.

It is kept under a hash of the names of the summaries, which hold the hashes of their sources. So a later call gives the
same answer to the last bit, and reads a hundredth of the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import FILE_MODE, read_json, write_json

from ..explain.slow_ranks import RankVerdict
from ..explain.slow_ranks.verdict import Evidence, Persistence
from ..tables.parquet_file import to_read, to_write
from ..tables.source_code import ANALYSING, code_version
from ..tables.table_folder import drafted
from ..wording.limits import keep_limits, kept_limits
from .blocks import COUNTED_COLUMNS, Blocks, Counting
from .rows import Rows, joined
from .slow_rank_cost import Price
from .slow_ranks import FirstAnswer, SlowRank, answer_of, steps_skipped
from .store import Summaries
from .survey import SURVEYED, Looking

OUTLOOK_VERSION = 3
"""Rises with every change of what the answer or a table says, so that older ones are made anew."""
ANSWER_NAME = "answer.json"
_TABLES = ("steps", "blocks")


class Outlook(NamedTuple):
    """What summaries say at first sight."""

    answer: FirstAnswer
    blocks: Blocks

    @property
    def records(self) -> int:
        """Return how many records the finished steps of all ranks have."""
        return int(self.blocks.steps["records"].to_numpy().sum())


def outlook_of(summaries: Summaries, limit_bytes: float | None = None) -> Outlook:
    """Return what summaries say at first sight: what is kept of it, else it is made and kept.

    Args:
        summaries: The summaries of a run.
        limit_bytes: Memory there is; an answer from some of the steps is not kept.

    Raises:
        TraceFormatError: No step was finished by all ranks, or no pass was recorded.
        RunDirectoryError: A file of the summaries cannot be read.
    """
    kept = kept_outlook(summaries)
    if kept is not None:
        return kept
    made = _made(summaries, limit_bytes)
    if made.answer.every > 1:
        return made
    # Summaries of somebody else can be read, though nothing can be kept beside them.
    with suppress(OSError):
        _keep(made, summaries)
    return made


def _made(summaries: Summaries, limit_bytes: float | None) -> Outlook:
    """Return what summaries say, from one look at each row; of some ranks the rows are read again."""
    looking = Looking(steps_skipped(summaries, limit_bytes), len(summaries.ranks))
    counting = Counting(summaries)
    columns = tuple(dict.fromkeys((*SURVEYED, *COUNTED_COLUMNS)))
    with ThreadPoolExecutor(1) as other:
        for part in joined(summaries.parts(columns, zeros=False)):
            rows = Rows(part)
            counted = other.submit(counting.add, rows)
            looking.add(rows)
            counted.result()
    answer = answer_of(summaries, looking.survey(str(summaries.run)), limit_bytes)
    return Outlook(answer, counting.blocks())


def kept_outlook(summaries: Summaries) -> Outlook | None:
    """Return what is kept of these summaries; None if nothing is, or it is damaged."""
    key = _key(summaries)
    try:
        kept = read_json(summaries.folder / ANSWER_NAME)
        if kept["key"] != key:
            return None
        tables = [_read(_place(summaries, name, key)) for name in _TABLES]
        return Outlook(_answer(kept["answer"]), Blocks(*tables))
    except (MeshscopeError, OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None


def _key(summaries: Summaries) -> str:
    """Return the hash of everything that the outlook follows from."""
    layout, *others = summaries.outline
    made_from = {
        "version": [OUTLOOK_VERSION, code_version(ANALYSING)],
        "run": summaries.run.resolve().name,
        "outline": [None if layout is None else layout.to_json(), *others],
        "segments": [
            [one.name, one.rows, sorted(one.dropped.items())] for one in summaries.segments
        ],
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def _place(summaries: Summaries, name: str, key: str) -> Path:
    return summaries.folder / f"{name}.{key[:16]}.parquet"


def _read(place: Path) -> pa.Table:
    with to_read(place) as source:
        return pq.read_table(source)


def _keep(made: Outlook, summaries: Summaries) -> None:
    """Write the tables, then the answer, which says that they are there; remove older ones.

    Raises:
        OSError: They cannot be written.
    """
    key = _key(summaries)
    places = {name: _place(summaries, name, key) for name in _TABLES}
    with drafted(summaries.folder, "outlook.") as folder:
        for name, place in places.items():
            draft = folder / place.name
            with to_write(draft) as sink:
                table = getattr(made.blocks, name)
                # Of times no two are the same: a dictionary of them takes long and saves nothing.
                whole = [one.name for one in table.schema if pa.types.is_integer(one.type)]
                pq.write_table(table, sink, compression="zstd", use_dictionary=whole)
            draft.chmod(FILE_MODE)
            draft.replace(place)
    answer = asdict(made.answer) | keep_limits(made.answer.limits)
    write_json(summaries.folder / ANSWER_NAME, {"key": key, "answer": answer})
    for name, place in places.items():
        for old in summaries.folder.glob(f"{name}.*.parquet"):
            if old != place:
                old.unlink(missing_ok=True)


def _answer(kept: Mapping[str, Any]) -> FirstAnswer:
    """Return the answer that ``_keep`` wrote.

    Raises:
        KeyError, TypeError, ValueError: It is not what that writes.
    """
    first, last = kept["steps"]
    others = ("run", "ranks", "step_count", "step_ns", "minimum_slowdown")
    return FirstAnswer(
        **{name: kept[name] for name in others},
        steps=(int(first), int(last)),
        slow=tuple(map(_slow, kept["slow"])),
        limits=kept_limits(kept),
    )


def _slow(kept: Mapping[str, Any]) -> SlowRank:
    verdict = dict(kept["verdict"])
    interval = verdict.pop("interval")
    return SlowRank(
        verdict=RankVerdict(
            **verdict
            | {
                "persistence": Persistence(verdict["persistence"]),
                "evidence": Evidence(verdict["evidence"]),
                "ambiguous_with": tuple(verdict["ambiguous_with"]),
                "slow_steps": tuple((first, last) for first, last in verdict["slow_steps"]),
            },
            interval=None if interval is None else (interval[0], interval[1]),
        ),
        price=Price(*kept["price"]),
        slow_steps=kept["slow_steps"],
        step_after_ns=kept["step_after_ns"],
    )
