"""What the last all-to-alls of a run carried between pairs of ranks, as rows of ``collective_call``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.reader.assemble import manifest_groups
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.imported_tables import COLLECTIVE_CALL
from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directories, read_json
from meshscope.probe.schema.pair_sizes import read_pair_sizes
from meshscope.probe.schema.terms import CollectiveKind


def pairs_at_the_end(path: Path, collectives: pa.Table) -> pa.Table:
    """Return the rows of those all-to-alls that a rank noted and recorded alike.

    Args:
        path: The run directory.
        collectives: The table ``collective`` of the run.
    """
    is_one = pc.equal(pc.cast(collectives["kind"], "string"), CollectiveKind.ALL_TO_ALL.value)
    rows = collectives.filter(is_one).select(["rank", "group_id", "seq", "size_bytes"])
    recorded = set(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    found = [one for one in _noted(path) if recorded and _key(one) in recorded]
    return (
        COLLECTIVE_CALL.conform(pa.Table.from_pylist(found)) if found else COLLECTIVE_CALL.empty()
    )


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["rank"], row["group_id"], row["seq"], row["input_bytes"]


def _noted(path: Path) -> Iterator[dict[str, Any]]:
    for rank, directory in rank_directories(path).items():
        with suppress(RunDirectoryError, OSError):
            listed = manifest_groups(read_json(directory / MANIFEST_NAME))
            groups = {group["index"]: group["group_id"] for group in listed}
            for one in read_pair_sizes(directory):
                if one.group not in groups:
                    continue
                yield {
                    "rank": rank,
                    "group_id": groups[one.group],
                    "seq": one.seq,
                    "input_bytes": sum(one.sent),
                    "output_bytes": sum(one.expected),
                    "input_splits": " ".join(map(str, one.sent)),
                    "output_splits": " ".join(map(str, one.expected)),
                }
