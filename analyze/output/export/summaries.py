"""What the pages of a large run show, as files: from its summaries, without a record."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from ...scale.first_answer import outlook_of
from ...scale.slow_ranks import FirstAnswer
from ...scale.store import Summaries
from ...scale.summary import SCHEMA
from ...tables.parquet_file import to_write
from ..json.summaries import slow_rank_to_json
from .csv import harmless

SLOW_RANK_COLUMNS = (
    *("rank", "first_bad_step", "last_bad_step", "slow_steps", "persistence", "evidence"),
    *("slowdown", "slowdown_low", "slowdown_high", "confidence", "ambiguous_with"),
    *("return_ns", "return_unknown", "most_ns", "step_after_ns"),
)


def export_summaries(summaries: Summaries, folder: Path) -> list[Path]:
    """Write the steps, the blocks and the slow ranks as CSV, and the rows as Parquet; return the files.

    Memory holds the rows of one file of the summaries.

    Raises:
        RunDirectoryError: The summaries cannot be read.
        TraceFormatError: No step was finished by all ranks, or no pass was recorded.
        OSError: A file cannot be written.
    """
    answer, blocks = outlook_of(summaries)
    folder.mkdir(parents=True, exist_ok=True)
    frames = {
        **{one.name: getattr(blocks, one.name).to_pandas() for one in fields(blocks)},
        "slow_ranks": slow_rank_table(answer),
    }
    files = []
    for name, frame in frames.items():
        files.append(folder / f"{name}.csv")
        with files[-1].open("w", encoding="utf-8", newline="") as stream:
            harmless(frame).to_csv(stream, index=False)
    files.append(folder / "rows.parquet")
    with to_write(files[-1]) as sink, pq.ParquetWriter(sink, SCHEMA, compression="zstd") as out:
        for part in summaries.parts(SCHEMA.names):
            out.write_table(part)
    return files


def slow_rank_table(answer: FirstAnswer) -> pd.DataFrame:
    """Return one row a slow rank, the dearest first; its bounds and lists in cells of their own."""
    rows = []
    for one in answer.slow:
        record = slow_rank_to_json(one)
        low, high = record["interval"] or (None, None)
        runs = " ".join(f"{first}-{last}" for first, last in record["slow_steps"])
        alike = " ".join(map(str, record["ambiguous_with"]))
        rows.append(
            {
                **record,
                "slowdown_low": low,
                "slowdown_high": high,
                "slow_steps": runs,
                "ambiguous_with": alike,
            }
        )
    return pd.DataFrame(rows, columns=list(SLOW_RANK_COLUMNS))
