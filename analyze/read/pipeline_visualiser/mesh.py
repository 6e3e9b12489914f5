"""The mesh of a pipeline visualiser run: sizes from its config, else from its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

from ...wording.limits import Limit
from ...wording.message import message
from ..files import DAMAGED_JSON, InputFile
from ..whole_file import read_whole
from .files import StageFile

_MOST_BYTES = 1 << 20
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
            whole = read_whole(file, most_bytes=_MOST_BYTES, remedy=message("advice.config_of_job"))
            return msgspec.json.decode(whole.content, type=_Config)
        except (*DAMAGED_JSON, TraceFormatError) as error:
            notes.append(message("missing.config", file=file.name, error=str(error)))
    notes.append(message("assumed.sizes_of_files"))
    return _Config()
