"""One deep trace as tables whose rows are in the steps of its rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import MeshscopeError

from ...tables.parquet_file import to_read
from ...wording.message import message
from ...wording.step_ranges import step_ranges
from ..files import InputFile
from ..kineto.columns import StepWindows
from ..kineto.rank import Place, read_rank_file
from .cache import DeepCache, ReadTrace
from .files import DeepFile, Faults, left_out
from .steps import OwnSteps, steps_held, unix_offsets_ns

_IntArray = npt.NDArray[np.int64]


class DeepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One trace that was read; its times are still of the time of day."""

    file: DeepFile
    steps: tuple[int, ...]
    """Whole steps that it holds, of those that its name says."""
    offset_ns: int
    """Taken from its times to get the monotonic clock of the rank."""
    has_kernels: bool
    stored: Mapping[str, Path]
    """Files of its large tables."""
    names: pa.Table
    outside: int
    """Events of the host and the device in other steps."""


def read_deep_trace(
    file: DeepFile, steps: OwnSteps, folder: Path, faults: Faults, cache: DeepCache | None = None
) -> DeepTrace | None:
    """Read one trace; None where it is of no use, which is noted.

    Args:
        file: What to read.
        steps: The steps of its rank in the run.
        folder: Gets its large tables; must be empty or new.
        faults: Gets what is wrong with it.
        cache: Keeps what was read of it; None to keep nothing.
    """
    offsets_ns = unix_offsets_ns(file.manifest, steps.start_ns)
    if offsets_ns is None or not len(steps.number):
        no_clock, no_step = message("deep_trace.no_clock"), message("deep_trace.no_step")
        faults.add(file.rank, left_out(file.name, no_clock if offsets_ns is None else no_step))
        return None
    windows = StepWindows(
        steps.number, steps.start_ns + offsets_ns, steps.end_ns + offsets_ns, is_whole_file=False
    )

    def read() -> ReadTrace | None:
        return _read(file, Place(folder, "trace", windows), faults)

    found = read() if cache is None else cache.read(file, windows, read)
    if found is None:
        return None
    place = found.stored
    step, counts = _events_by_step(place, has_device=found.device_events > 0)
    held = steps_held(step, counts)
    kept = _judged(file, held, faults)
    if not kept:
        return None
    return DeepTrace(
        file=file,
        steps=kept,
        offset_ns=int(offsets_ns[np.flatnonzero(steps.number == kept[0])[-1]]),
        has_kernels=found.device_events > 0,
        stored=place,
        names=found.names,
        outside=int(counts[~np.isin(step, kept)].sum()),
    )


def _read(file: DeepFile, place: Place, faults: Faults) -> ReadTrace | None:
    """Return the tables of a trace that is whole and of its rank, else None."""
    place.folder.mkdir(parents=True, exist_ok=True)
    try:
        found = read_rank_file(InputFile(file.path.name, file.path), place, default_rank=file.rank)
    except (MeshscopeError, OSError) as error:
        faults.add(file.rank, left_out(file.name, message("deep_trace.damaged", error=str(error))))
        return None
    if found.losses:
        why = message("deep_trace.torn", losses=found.losses)
    elif found.rank != file.rank:
        why = message("deep_trace.other_rank", rank=found.rank)
    elif not found.has_base_time:
        why = message("deep_trace.no_base_time")
    else:
        return ReadTrace(found.device_events, found.tables["name"], place.files())
    faults.add(file.rank, left_out(file.name, why))
    return None


def _events_by_step(files: Mapping[str, Path], *, has_device: bool) -> tuple[_IntArray, _IntArray]:
    """Return the steps in which a trace has events, -1 for none of them, and how many."""
    parts = [pq.read_table(to_read(files["op"]), columns=["step"])["step"]]
    if has_device:
        parts.append(pq.read_table(to_read(files["kernel"]), columns=["step"])["step"])
    joined = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.int64())
    counted = pc.value_counts(joined)
    return counted.field("values").to_numpy(), counted.field("counts").to_numpy()


def _judged(file: DeepFile, held: list[int], faults: Faults) -> tuple[int, ...]:
    """Return the steps of a trace that count; what differs from its name is noted."""
    name = file.name
    wanted = range(name.first_step, name.last_step + 1)
    if not held:
        faults.add(file.rank, left_out(name, message("deep_trace.outside_steps")))
        return ()
    holds = step_ranges(held)
    if not file.is_counted_alike:
        if len(held) != len(wanted):
            note = message(
                "missing.deep_trace_length", ticket=name.ticket, steps=len(wanted), holds=holds
            )
            faults.add(file.rank, note)
        return tuple(held)
    kept = tuple(step for step in held if step in wanted)
    if not kept:
        faults.add(file.rank, left_out(name, message("deep_trace.other_steps", holds=holds)))
    elif len(held) != len(wanted) or len(kept) != len(wanted):
        note = message(
            "missing.deep_trace_steps",
            ticket=name.ticket,
            named=(name.first_step, name.last_step),
            holds=holds,
            kept=step_ranges(kept),
        )
        faults.add(file.rank, note)
    return kept
