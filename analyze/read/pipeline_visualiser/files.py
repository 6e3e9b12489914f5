"""The JSON files of the pipeline visualiser: what one stage did, and the mesh by config and files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

from ...wording.limits import Limit
from ...wording.message import message
from ..byte_source import WholeFile, read_whole
from ..file_limits import left_out_files
from ..files import DAMAGED_JSON, InputFile
from ..json_borders import closed_values

_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_MOST_BYTES = 32 << 20
"""Larger files are refused; an iteration of 64 microbatches has about 5 kB."""
_LONGEST_MS = 1e11
"""Three years; later times are damage, and would not fit 64 bits of nanoseconds."""
LONGEST_ITERATION_MS = 86_400_000
"""A day: an iteration, or a pass, that lasts longer is damage."""

_Ms = Annotated[float, msgspec.Meta(gt=-_LONGEST_MS, lt=_LONGEST_MS)]
_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]


class Iteration(msgspec.Struct):
    """One iteration of one stage: lists in the order of execution, times in ms."""

    total: Annotated[float, msgspec.Meta(ge=0, lt=_LONGEST_MS)]
    fwd_start: list[_Ms]
    fwd_end: list[_Ms]
    bwd_start: list[_Ms]
    bwd_end: list[_Ms]
    memory: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] | None = None
    """Peak, GiB."""
    wgrad_start: list[_Ms] = []
    wgrad_end: list[_Ms] = []
    fwd_minibatch: list[_Id] | None = None
    bwd_minibatch: list[_Id] | None = None
    wgrad_minibatch: list[_Id] | None = None
    fwd_chunk: list[_Id] | None = None
    bwd_chunk: list[_Id] | None = None
    wgrad_chunk: list[_Id] | None = None


@dataclass(frozen=True, slots=True)
class StageFile:
    """One file."""

    label: str
    stage: int
    """Pipeline rank, from the file name."""
    iterations: dict[int, Iteration]
    is_cut: bool
    """Whether the file ends early; its whole iterations are here."""


_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
_DECODER = msgspec.json.Decoder(dict[_Number, Iteration])


def read_stage_files(path: Path, files: Sequence[InputFile]) -> tuple[list[StageFile], list[Limit]]:
    """Return the readable files by pipeline rank, and a sentence for each other one.

    Raises:
        TraceFormatError: Two files claim one pipeline rank, or no file can be read.
    """
    found: dict[int, StageFile] = {}
    errors: list[TraceFormatError] = []
    for file in files:
        try:
            one = _read(file)
        except TraceFormatError as error:
            errors.append(error)
            continue
        if one.stage in found:
            raise TraceFormatError(
                message("refused.stage_twice", stage=one.stage, other=found[one.stage].label),
                where=one.label,
                remedy=message("advice.file_of_each_stage"),
            )
        found[one.stage] = one
    if not found:
        raise errors[0] if errors else TraceFormatError(message("refused.no_dump"), where=str(path))
    notes = left_out_files(errors)
    notes += [
        message("missing.cut_iterations", file=one.label, whole=len(one.iterations))
        for one in found.values()
        if one.is_cut
    ]
    return [found[stage] for stage in sorted(found)], notes


def _read(file: InputFile) -> StageFile:
    named = _RANK_IN_NAME.search(file.name)
    if named is None:
        raise TraceFormatError(
            message("refused.names_no_stage"),
            where=file.label,
            remedy=message("advice.name_stage"),
        )
    whole = read_whole(file, most_bytes=_MOST_BYTES, remedy=message("advice.fewer_iterations"))
    iterations, is_cut = _iterations(whole, file.label)
    if not iterations:
        raise TraceFormatError(message("refused.no_iteration"), where=file.label)
    return StageFile(file.label, int(named[1]), iterations, is_cut)


def _iterations(whole: WholeFile, where: str) -> tuple[dict[int, Iteration], bool]:
    """Return the whole iterations of a file, and whether it ends early.

    Raises:
        TraceFormatError: It is damaged otherwise than by being cut off.
    """
    try:
        return _DECODER.decode(whole.content), whole.ends_early
    except DAMAGED_JSON as error:
        kept = closed_values(whole.content)
        if kept is not None:
            with suppress(*DAMAGED_JSON):
                return _DECODER.decode(kept), True
        raise TraceFormatError(
            message("refused.pipeline_dump", error=str(error)),
            where=where,
            remedy=message("advice.write_dump_again"),
        ) from error


_MOST_CONFIG_BYTES = 1 << 20
"""A configuration has a few kB: a trace given by mistake is not parsed."""
_Size = Annotated[int, msgspec.Meta(ge=1, lt=1 << 24)]


class _Config(msgspec.Struct):
    """What the config may hold; two keys are spelled in two ways."""

    pp_size: _Size | None = None
    tp_size: _Size = 1
    dp_size: _Size = 1
    ep_size: _Size = 1
    vp_size: _Size | None = None
    vpp_size: _Size | None = None
    world_size: _Size | None = None
    num_mbs: _Size | None = None
    micro_batches: _Size | None = None
    schedule: Any = None


@dataclass(frozen=True, slots=True)
class Mesh:
    """Where the recorded ranks sit."""

    layout: ParallelLayout
    microbatches: int | None
    schedule: str | None

    @property
    def pp(self) -> int:
        """Return the pipeline ranks."""
        return self.layout.pp

    @property
    def vpp(self) -> int:
        """Return the chunks per rank."""
        return self.layout.vpp

    def rank_of(self, stage: int) -> int:
        """Return the global rank that a pipeline rank stands for: the first one of it."""
        return self.layout.rank(pp=stage)


def read_mesh(
    stages: Sequence[StageFile], configs: Sequence[InputFile], notes: list[Limit]
) -> Mesh:
    """Return the mesh; what cannot be known is added to ``notes``.

    Raises:
        TraceFormatError: A file belongs to a pipeline rank that the config does not have.
    """
    config = _read_config(configs, notes)
    seen = stages[-1].stage + 1
    pp = config.pp_size or seen
    if seen > pp:
        raise TraceFormatError(
            message("refused.more_stages_than_config", stage=seen - 1, stages=pp),
            where=stages[-1].label,
            remedy=message("advice.config_of_one_run"),
        )
    layout = ParallelLayout(
        pp=pp,
        tp=config.tp_size,
        dp=config.dp_size,
        ep=config.ep_size,
        vpp=config.vp_size or config.vpp_size or 1,
    )
    if config.world_size not in (None, layout.world_size):
        notes.append(
            message("unknown.sizes_of_config", own=layout.world_size, ranks=config.world_size)
        )
        layout = ParallelLayout(pp=pp, vpp=layout.vpp)
    if layout.world_size > layout.pp:
        notes.append(message("assumed.first_rank_of_stage"))
    schedule = str(config.schedule) if str(config.schedule) in set(ScheduleKind) else None
    return Mesh(layout, config.num_mbs or config.micro_batches, schedule)


def _read_config(configs: Sequence[InputFile], notes: list[Limit]) -> _Config:
    for file in configs:
        try:
            whole = read_whole(
                file, most_bytes=_MOST_CONFIG_BYTES, remedy=message("advice.config_of_job")
            )
            return msgspec.json.decode(whole.content, type=_Config)
        except (*DAMAGED_JSON, TraceFormatError) as error:
            notes.append(message("missing.config", file=file.name, error=str(error)))
    notes.append(message("assumed.sizes_of_files"))
    return _Config()
