"""What the user states about mesh, groups and kernels, put in the place of what was inferred.

A trace may not tell its mesh: groups without names, one rank of many, a library that
we do not know. What is stated wins; where the trace says otherwise, that stays
visible as a limit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import msgspec
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis, KernelCategory

from ...tables.trace import Machine, Trace
from ...wording.limits import Limit, has_code
from ...wording.message import message
from .axes import contradictions, with_axes
from .stated_job import StatedJob


class StatedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as the user describes it; found by id, or by its members."""

    group_id: str | None
    ranks: tuple[int, ...]
    """Members as global ranks; empty where they are not stated."""
    axis: Axis | None


class StatedTopology(msgspec.Struct, frozen=True, kw_only=True):
    """What a topology file says."""

    source: str
    """The file, as messages name it."""
    key: str
    """Hash of the file's content."""
    sizes: Mapping[str, int]
    """Stated sizes of axes, by the field names of ``ParallelLayout``."""
    order: str | None
    """Axes from the slowest to the fastest varying."""
    groups: tuple[StatedGroup, ...]
    communication: tuple[re.Pattern[str], ...]
    """Kernels whose name contains one of these communicate."""
    computation: tuple[re.Pattern[str], ...]
    """Kernels whose name contains one of these compute; asked first."""
    job: StatedJob = msgspec.field(default_factory=StatedJob)
    """Model and training."""
    machines: tuple[Machine, ...] = ()
    """Hosts."""


def apply_topology(trace: Trace, stated: StatedTopology) -> Trace:
    """Return the trace with the stated mesh, groups and kernels.

    Contradictions between what is stated and what the trace shows become limits.

    Raises:
        ConfigError: The stated mesh or a group cannot hold the ranks of the trace.
    """
    limits: list[Limit] = []
    layout = _layout(trace, stated, limits)
    groups, axes = _groups(trace, stated, limits)
    run = dict(trace.run)
    if layout is not None:
        run["world_size"] = layout.world_size
    run |= _job(run, layout, stated, limits)
    known = tuple(limit for limit in trace.limits if not _is_settled(limit, layout))
    machines = stated.machines or trace.machines
    found = replace(trace, run=run, layout=layout, limits=known, machines=machines, _frames={})
    limits += _other_hosts(trace, stated)
    found = _with_kernels(found.with_tables({"group": groups}), stated, limits)
    found = with_axes(found, stated=axes, source=stated.source)
    contradicted = contradictions(found)
    return replace(found, limits=(*found.limits, *limits, *contradicted), _frames={})


def _other_hosts(trace: Trace, stated: StatedTopology) -> list[Limit]:
    """Return where the trace names another host than the file."""
    other = [
        (rank, machine.name)
        for machine in stated.machines
        for rank in machine.ranks
        if trace.clocks.get(rank, machine.name) != machine.name
    ]
    if not other:
        return []
    rank, name = other[0]
    return [
        message(
            "assumed.stated_other_hosts",
            source=stated.source,
            count=len(other),
            rank=rank,
            stated=name,
            traced=trace.clocks[rank],
        )
    ]


_CHECKED = (
    "tokens_per_step",
    "flops_per_token",
    "microbatches",
    "schedule",
    "device_name",
    "peak_flops",
)
"""Facts of a run that a trace may hold too."""


def _job(
    run: Mapping[str, object],
    layout: ParallelLayout | None,
    stated: StatedTopology,
    limits: list[Limit],
) -> dict[str, object]:
    """Return what is stated of model and training, as columns of the run table."""
    values = stated.job.run_values(layout)
    for name in _CHECKED:
        known, now = run.get(name), values.get(name)
        if now is not None and known not in (None, "", now):
            limits.append(
                message(
                    "assumed.stated_other_value",
                    source=stated.source,
                    name=name,
                    stated=now,
                    traced=known,
                )
            )
    if "peak_flops" in values:
        values.setdefault("peak_source", f"stated in {stated.source}")
    return values


def _is_settled(limit: Limit, layout: ParallelLayout | None) -> bool:
    return layout is not None and has_code(limit, "unknown.mesh")


def _layout(trace: Trace, stated: StatedTopology, limits: list[Limit]) -> ParallelLayout | None:
    """Return the stated mesh, or that of the trace where none is stated."""
    if not stated.sizes and stated.order is None:
        return trace.layout
    layout = _complete(trace, stated)
    members = [rank for ranks in trace.frame("group")["ranks"] for rank in ranks]
    highest = max([*trace.ranks, *members], default=0)
    if highest >= layout.world_size:
        raise ConfigError(
            message("refused.rank_beyond_mesh", ranks=layout.world_size, rank=highest),
            where=f"{stated.source}: layout",
            remedy=message("advice.product_is_ranks"),
        )
    world = trace.run.get("world_size")
    if isinstance(world, int) and world > 0 and world != layout.world_size:
        limits.append(
            message(
                "assumed.stated_other_ranks",
                source=stated.source,
                stated=layout.world_size,
                traced=world,
            )
        )
    if trace.layout is not None and _shape(trace.layout) != _shape(layout):
        limits.append(
            message(
                "assumed.stated_other_mesh",
                source=stated.source,
                stated=describe(layout),
                traced=describe(trace.layout),
            )
        )
    return layout


def _complete(trace: Trace, stated: StatedTopology) -> ParallelLayout:
    """Return the mesh with the data-parallel size that the world leaves, where none is stated."""
    sizes = dict(stated.sizes)
    world = trace.run.get("world_size")
    if "dp" not in sizes and isinstance(world, int) and world > 0:
        model = prod(sizes.get(axis, 1) for axis in MESH_AXES)
        sizes["dp"], rest = divmod(world, model)
        if rest or not sizes["dp"]:
            raise ConfigError(
                message("refused.mesh_of_trace", product=model, ranks=world),
                where=f"{stated.source}: layout",
                remedy=message("advice.sizes_of_ranks"),
            )
    layout = ParallelLayout(**sizes, order=stated.order or ParallelLayout().order)
    if (layout.dp * layout.cp) % layout.ep:
        raise ConfigError(
            message("refused.ep_over_mesh", ep=layout.ep, ranks=layout.dp * layout.cp),
            where=f"{stated.source}: layout.ep",
            remedy=message("advice.experts_spread"),
        )
    return layout


def _shape(layout: ParallelLayout) -> tuple[object, ...]:
    """Return what tells two meshes apart; where axes of one rank stand makes no difference."""
    sizes = [(name, getattr(layout, name)) for name in layout.order.split("-")]
    return (*((name, size) for name, size in sizes if size > 1), layout.ep)


def describe(layout: ParallelLayout) -> str:
    """Return a mesh in one clause: ``TP2 x PP4 x DP2, slowest to fastest pp-dp-cp-tp``."""
    sizes = ((name, getattr(layout, name)) for name in ("tp", "pp", "dp", "cp", "ep", "vpp"))
    shown = [f"{name.upper()}{size}" for name, size in sizes if size > 1] or ["1 rank"]
    return f"{' x '.join(shown)}, slowest to fastest {layout.order}"


def _groups(
    trace: Trace, stated: StatedTopology, limits: list[Limit]
) -> tuple[pa.Table, dict[str, Axis]]:
    """Return the group table with the stated members, and the stated axes by group."""
    if not stated.groups:
        return trace.tables.get("group", TABLES["group"].empty()), {}
    frame = trace.frame("group").copy()
    ids = frame["group_id"].astype(str).tolist()
    members = [tuple(ranks) for ranks in frame["ranks"]]
    axes: dict[str, Axis] = {}
    for number, group in enumerate(stated.groups, start=1):
        places = _places(group, ids, members)
        if not places:
            limits.append(_no_such_group(group, number, stated.source, ids))
        for place in places:
            if group.ranks:
                _check_users(trace, ids[place], group.ranks, f"{stated.source}: group {number}")
                members[place] = group.ranks
            if group.axis is not None:
                axes[ids[place]] = group.axis
    frame["ranks"] = pd.Series([list(ranks) for ranks in members], dtype=object)
    return TABLES["group"].conform(pa.Table.from_pandas(frame, preserve_index=False)), axes


def _no_such_group(group: StatedGroup, number: int, source: str, ids: list[str]) -> Limit:
    has = ids or ["none"]
    if group.group_id:
        return message(
            "missing.group_not_in_trace",
            source=source,
            name=group.group_id,
            number=number,
            has=has,
        )
    return message(
        "missing.group_of_ranks_not_in_trace",
        source=source,
        ranks=list(group.ranks),
        number=number,
        has=has,
    )


def _places(group: StatedGroup, ids: list[str], members: list[tuple[int, ...]]) -> list[int]:
    """Return which groups of the trace are meant: that id, else all with these members."""
    if group.group_id is not None:
        return [place for place, name in enumerate(ids) if name == group.group_id]
    wanted = set(group.ranks)
    return [place for place, ranks in enumerate(members) if set(ranks) == wanted]


def _check_users(trace: Trace, group_id: str, ranks: tuple[int, ...], where: str) -> None:
    """Refuse members that leave out a rank that uses the group.

    Raises:
        ConfigError: A rank has operations in the group and is not among the members.
    """
    for name in ("collective", "p2p"):
        rows = trace.frame(name)
        users = set(rows.loc[rows["group_id"].astype(str) == group_id, "rank"].tolist())
        if users - set(ranks):
            missing = min(users - set(ranks))
            raise ConfigError(
                message("refused.rank_left_out", rank=missing, group=group_id),
                where=where,
                remedy=message("advice.add_rank", rank=missing),
            )


def _with_kernels(trace: Trace, stated: StatedTopology, limits: list[Limit]) -> Trace:
    """Return the trace with the stated categories of kernels; copies and sets stay what they are."""
    if not (stated.communication or stated.computation) or not trace.row_count("kernel"):
        return trace
    names = trace.frame("name")
    by_rank: dict[int, dict[int, str]] = {}
    category_of = _CategoryOfName(stated)
    for rank, name_id, text in zip(names["rank"], names["name_id"], names["name"], strict=True):
        category = category_of[str(text)]
        if category is not None:
            by_rank.setdefault(int(rank), {})[int(name_id)] = category

    def change(rank: int, table: pa.Table) -> pa.Table:
        return _recategorised(table, by_rank.get(rank, {}))

    counts: Counter[str] = Counter()
    for rank in by_rank:
        frame = trace.rank_frame("kernel", rank, ["name_id", "category"])
        is_kernel = frame["category"].isin(_KERNELS)
        counts.update(frame.loc[is_kernel, "name_id"].map(by_rank[rank]).dropna())
    for name, count in sorted(counts.items()):
        limits.append(
            message("assumed.stated_kernels", count=int(count), category=name, source=stated.source)
        )
    return trace.with_changed_ranks("kernel", change)


_KERNELS = tuple(
    category.value
    for category in (KernelCategory.COMPUTE, KernelCategory.COMMUNICATION, KernelCategory.UNKNOWN)
)


def _recategorised(table: pa.Table, category_of: Mapping[int, str]) -> pa.Table:
    """Return the kernels of one rank with the stated category of each name."""
    if not category_of or not table.num_rows:
        return table
    was = table["category"].to_pandas().astype(str)
    wanted = table["name_id"].to_pandas().map(category_of)
    now = was.where(wanted.isna() | ~was.isin(_KERNELS), wanted)
    values = pa.array(now.to_numpy(dtype=object), pa.string())
    column = table.column_names.index("category")
    changed = table.set_column(column, "category", values)
    return TABLES["kernel"].conform(changed)


class _CategoryOfName(dict[str, str | None]):
    """The stated category of a kernel name, None where no rule meets it; computation is asked first."""

    def __init__(self, stated: StatedTopology) -> None:
        super().__init__()
        self._rules = (
            (KernelCategory.COMPUTE, stated.computation),
            (KernelCategory.COMMUNICATION, stated.communication),
        )

    def __missing__(self, name: str) -> str | None:
        matches = (
            category.value
            for category, patterns in self._rules
            if any(pattern.search(name) for pattern in patterns)
        )
        self[name] = next(matches, None)
        return self[name]
