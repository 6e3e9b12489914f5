"""Jobs whose groups send over one link between hosts, which serves all that it has at once in equal parts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from tests.synthetic import Job, Machine, capture_of, programs

from meshscope.analyze.account.links.own import bus_factor
from meshscope.analyze.tables.trace import Card, Trace
from meshscope.analyze.tables.trace import Machine as Host
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

WORK_NS = {"forward": 5_000_000, "backward": 10_000_000}


@dataclass(frozen=True)
class Link:
    """What the collectives of some groups share."""

    groups: int
    bytes_per_s: float
    name: str = ""
    """Of a port that groups of several axes share; else an axis has its own."""


class SharedMachine(Machine):
    """A simulator in which collectives of several groups share a link."""

    def _do_shared(self, rank, key, entered, step, group, axis, kind, size, link) -> bool:
        name, members = group
        seq, arrivals = self._arrive(rank, key, entered, name)
        came = self.__dict__.setdefault("ready", defaultdict(dict))[link.name or axis, seq]
        alone = self.__dict__.setdefault("alone", defaultdict(dict))[link.name or axis, seq]
        alone[name] = size * bus_factor(kind, len(members)) / link.bytes_per_s * 1e9
        if len(arrivals) == len(members):
            came[name] = max(arrivals.values())
        if len(came) < link.groups:
            return False
        start, end = arrivals[rank], round(served(came, alone)[name])
        row = {"rank": rank, "step": step, "group_id": name, "axis": axis, "kind": kind}
        row |= {"seq": seq, "size_bytes": size, "dtype": "float32", **self._times(start, end)}
        self.rows["collective"].append(row)
        self.clock[rank] = end
        return True


def served(came: dict[str, int], alone_ns: dict[str, float]) -> dict[str, float]:
    """Return when each transfer is complete on a link that serves those it has in equal parts.

    Args:
        came: When each one comes, ns.
        alone_ns: What each one takes that has the link for itself.
    """
    left = {name: alone_ns[name] for name in came}
    now, done = float(min(came.values())), {}
    while left:
        there = [name for name in left if came[name] <= now]
        later = min((came[name] for name in left if came[name] > now), default=np.inf)
        if not there:
            now = float(later)
            continue
        until = min(now + min(left[name] for name in there) * len(there), later)
        for name in there:
            left[name] -= (until - now) / len(there)
            if left[name] <= 1e-6:
                done[name] = until
                del left[name]
        now = float(until)
    return done


def over_one_link(
    layout: ParallelLayout,
    bytes_per_s: float,
    *,
    seed: int,
    per_host: int,
    stated: float | None = None,
    size: int = 1 << 22,
    cv: float = 0.1,
    steps: int = 10,
    hosts: tuple[int, ...] = (),
) -> Trace:
    """Return the capture of a job whose gradient sums, and layers that are split, share one link between its hosts.

    Args:
        layout: The mesh; rank r runs on host r // per_host.
        bytes_per_s: What the link carries.
        seed: Of the variation of the work.
        per_host: Ranks of a host.
        stated: What the ports of each host are said to carry; None unknown.
        size: Of the gradients, bytes; what layers send has an eighth of it.
        cv: Variation of each piece of work.
        steps: Of the job.
        hosts: The host of each rank, where it is another one.
    """
    hosts = hosts or tuple(rank // per_host for rank in range(layout.world_size))
    job = Job(layout=layout, steps=steps, wire_ns=50_000)
    crossing = {
        axis: {own for own in layout.groups(axis) if len({hosts[rank] for rank in own}) > 1}
        for axis in ("tp", "dp")
    }
    sizes = {"dp": size, "tp": size // 8}

    def work(kind, rank, step, microbatch):
        key = [seed, kind == "forward", rank, step, microbatch]
        noise = np.random.default_rng(key).standard_normal()
        return int(WORK_NS[kind] * max(0.2, 1 + cv * noise))

    operations = [
        [
            ("shared", *op[1:5], sizes[op[3]], Link(len(crossing[op[3]]), bytes_per_s))
            if op[0] == "collective" and op[2][1] in crossing.get(op[3], ())
            else op
            for op in program
        ]
        for program in programs(job, work)
    ]
    trace = capture_of(job, operations, SharedMachine)
    return placed(trace, hosts, stated)


def over_one_port(
    groups: dict[str, tuple[tuple[int, ...], float]],
    bytes_per_s: float,
    hosts: tuple[int, ...],
    *,
    stated: float | None = None,
    shared: bool = True,
    elsewhere: dict[str, tuple[str, tuple[int, ...], float, float]] | None = None,
    steps: int = 10,
) -> Trace:
    """Return the capture of a job with a group on each axis, all of which send at once, and then wait for each other.

    Args:
        groups: Ranks and bytes of the group of each axis.
        bytes_per_s: What the port that they share carries, or each of them where they share none.
        hosts: The host of each rank.
        stated: What the ports of each host are said to carry; None unknown.
        shared: Whether all groups send through one port.
        elsewhere: Axis, ranks and bytes of more groups, and what their own ports carry.
        steps: Of the job.
    """
    layout = ParallelLayout(dp=len(hosts))
    job = Job(layout=layout, steps=steps, microbatches=1)
    link = Link(len(groups) if shared else 1, bytes_per_s, "port" if shared else "")
    everyone = ("everyone", tuple(range(len(hosts))))
    sent = [(f"group {axis}", axis, own, int(size), link) for axis, (own, size) in groups.items()]
    sent += [
        (name, axis, own, int(size), Link(1, rate, name))
        for name, (axis, own, size, rate) in (elsewhere or {}).items()
    ]
    operations = []
    for rank in everyone[1]:
        program: list[tuple] = []
        for step in range(steps):
            program.append(("work", WORK_NS["backward"], step, "forward", 0, 0))
            program += [
                ("shared", step, (name, own), axis, "all_reduce", size, port)
                for name, axis, own, size, port in sent
                if rank in own
            ]
            program.append(("collective", step, everyone, "other", "all_reduce", 8, 50_000))
            program.append(("end", step, 4096))
        operations.append(program)
    trace = capture_of(job, operations, SharedMachine)
    rows = [{"group_id": name, "axis": axis, "ranks": [*own]} for name, axis, own, _, _ in sent]
    rows.append({"group_id": everyone[0], "axis": "other", "ranks": [*everyone[1]]})
    table = TABLES["group"].conform(pa.Table.from_pylist(rows))
    trace = replace(trace, tables={**trace.tables, "group": table})
    return placed(trace, hosts, stated)


def placed(trace: Trace, host_of: tuple[int, ...], stated: float | None) -> Trace:
    """Return a trace whose ranks are on hosts, with the speed of their ports where it is stated."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in trace.ranks:
        hosts[f"host{host_of[rank]}"].append(rank)
    clocks = {rank: host for host, ranks in hosts.items() for rank in ranks}
    cards = ()
    if stated is not None:
        cards = (Card(name="eth0", socket=None, bytes_per_s=stated, ranks=()),)
    machines = tuple(Host(name=host, ranks=tuple(own), cards=cards) for host, own in hosts.items())
    return replace(trace, clocks=clocks, machines=machines if cards else (), _frames={})
