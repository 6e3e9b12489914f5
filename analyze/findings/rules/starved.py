"""Hosts whose processors are short, where the host itself moves the data.

Without a device that communicates, threads of the ranks copy and send. On a host with more
to run than processors they wait for one, and every transfer looks slow: the wire is not
to be distinguished from the processor then, and the processor is the likelier of the two. So is it for
a rank that is late without using its processor more than its peers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity, SpanKind

from ...explain.run_account import Account
from ...tables.classes import UNATTRIBUTED
from ...tables.results import Finding
from ...wording.message import Message, message
from .bad_steps import per_step
from .grading import severity

MIN_LOAD = 1.5
"""Runnable tasks a processor from which on a host is short of them."""
CONFIDENCE = 0.3
"""Of a finding about a wire whose ends are on such hosts, or a rank that waits for a processor there."""
MIN_OFF = 0.5
"""Part of a rank's excess that it is without a processor, at least, where that explains it."""
MOST_TIMES = 2.0
"""So many times what its peers lose without a processor chance makes of a rank's excess, at most."""
CONTENTION = "contention"
_PASSES = (SpanKind.FORWARD.value, SpanKind.BACKWARD.value)
PROCESSORS_FIRST = message("crowded.remedy")


def starved_hosts(account: Account) -> dict[str, Message]:
    """Return the hosts of ranks that were short of processors, each with how short they were.

    Nothing where transfers were not timed on the host, or no host was sampled.
    """
    return {
        host: message("crowded.tasks", host=host, tasks=round(load), cpus=round(cpus))
        for host, (load, cpus) in _loads(account).items()
        if load >= MIN_LOAD * cpus
    }


def load_of_hosts(account: Account) -> dict[str, float]:
    """Return the runnable tasks a processor of each host that was sampled, where transfers were timed on the host."""
    return {host: load / cpus for host, (load, cpus) in _loads(account).items()}


def _loads(account: Account) -> dict[str, tuple[float, float]]:
    """Return load and processors of each host of ranks."""
    frame, trace = account.events.frame, account.trace
    if frame.empty or not frame["host"].all() or not trace.row_count("host_sample"):
        return {}
    samples = trace.frame("host_sample")[["host", "cpus", "load_1m"]].dropna()
    usual = samples.groupby(samples["host"].astype(str))[["load_1m", "cpus"]].median()
    hosts = {trace.clock_of(rank) for rank in trace.ranks if rank in trace.clocks}
    found = {}
    for host in sorted(hosts.intersection(usual.index)):
        load, cpus = map(float, usual.loc[host].to_numpy(np.float64))
        found[host] = (load, cpus)
    return found


def crowded(account: Account) -> dict[str, Message]:
    """Return the hosts short of processors as ``starved_hosts`` does, or by how many ranks compute there.

    The load of a host follows slowly: it does not show in a job of seconds.
    """
    trace = account.trace
    found = starved_hosts(account)
    if not trace.row_count("host_sample") or not _computes_on_hosts(account):
        return found
    samples = trace.frame("host_sample")
    cpus = samples.groupby(samples["host"].astype(str))["cpus"].median().dropna()
    ranks = pd.Series(
        [trace.clock_of(r) for r in account.windows.ranks.tolist() if r in trace.clocks]
    )
    counts = ranks.value_counts()
    for host in sorted(set(map(str, counts.index)) & set(map(str, cpus.index)) - set(found)):
        count = int(counts[host])
        if count >= MIN_LOAD * cpus[host]:
            amounts = {"ranks": count, "cpus": round(float(cpus[host]))}
            found[host] = message("crowded.ranks", host=host, **amounts)
    return found


def _computes_on_hosts(account: Account) -> bool:
    frame = account.events.frame
    on_cpu = str(account.trace.run.get("device_name") or "").startswith("CPU")
    return on_cpu and not frame.empty and bool(frame["host"].all())


def starved_ends(account: Account, ranks: list[int]) -> list[Message]:
    """Return what shows that all of some ranks are on hosts short of processors; else nothing."""
    starved = starved_hosts(account)
    clocks = account.trace.clocks
    hosts = {account.trace.clock_of(rank) for rank in ranks if rank in clocks}
    if not hosts or not hosts <= set(starved):
        return []
    return [message("crowded.moves_data", shortage=starved[host]) for host in sorted(hosts)]


def shortage_of(account: Account, rank: int) -> Message | None:
    """Return how short of processors the host of a rank is; None where it is not."""
    if rank not in account.trace.clocks:
        return None
    return crowded(account).get(account.trace.clock_of(rank))


def waits_for_a_processor(account: Account, rank: int, excess_ns: float) -> Message | None:
    """Return what shows that a rank is late because its host is short of processors, else None.

    Its excess is then time without a processor, and no more than a few times what its peers, which
    wait for the same processors, lose in the same way. A rank that computes longer, or that sleeps far
    longer than the others wait, is slow.

    Args:
        account: The account.
        rank: A rank that seems to be slow.
        excess_ns: By how much it exceeds its peers per step.
    """
    shortage, peers = shortage_of(account, rank), account.peers_of(rank)
    return None if shortage is None else _waits_too(account, shortage, [rank], peers, excess_ns)


def stage_waits_for_a_processor(account: Account, stage: int, excess_ns: float) -> Message | None:
    """Return the same of a stage that seems to be heavier than the others, else None."""
    own = [rank for rank, at in account.stage.items() if at == stage]
    others = [rank for rank, at in account.stage.items() if at != stage]
    shortages = [shortage_of(account, rank) for rank in own]
    first = next(iter(shortages), None)
    if first is None or None in shortages or _uses_more(account, own, others):
        return None
    return _waits_too(account, first, own, others, excess_ns)


def _uses_more(account: Account, ranks: list[int], peers: list[int]) -> bool:
    """Return whether ranks use their processors longer than others by ``MIN_OFF`` of what they take longer.

    Whoever has more to compute also waits longer for a processor.
    """
    cpu = _cpu_ns(account)
    wall = account.ledger.by_step.groupby("rank")[list(_PASSES)].mean().sum(axis=1)
    more = []
    for times in (cpu, wall):
        own, others = times.reindex(ranks).median(), times.reindex(peers).median()
        if not others > 0:
            return False
        more.append(float(own / others) - 1.0)
    return more[0] >= MIN_OFF * more[1]


def _waits_too(
    account: Account, shortage: Message, ranks: list[int], peers: list[int], excess_ns: float
) -> Message | None:
    lost = _without_processor_ns(account)
    lost = _as_queued(account, lost, peers)
    own, others = lost.reindex(ranks).dropna(), lost.reindex(peers).dropna()
    if own.empty or others.empty:
        return None
    own_ns, usual_ns = float(own.median()), float(others.median())
    is_off = own_ns - usual_ns >= MIN_OFF * excess_ns
    if not is_off or not excess_ns <= MOST_TIMES * usual_ns:
        return None
    each = per_step(account.windows)
    lost_ns = {"own_ns": own_ns, "peers_ns": usual_ns}
    return message("crowded.waits_too", shortage=shortage, each=each, **lost_ns)


def _as_queued(account: Account, lost_ns: pd.Series[float], peers: list[int]) -> pd.Series[float]:
    """Return what ranks lose without a processor, no more than the kernel counted of waiting for one.

    It counts the thread that trains. That waits for threads beside it too, which wait for a processor in
    their turn: so many times what it was counted as the median of the peers lost is allowed for.

    Args:
        account: The account.
        lost_ns: What each rank loses per step, at most: a sleep is in it.
        peers: Ranks that nothing else is known of.
    """
    queued = _queued_ns(account).reindex(lost_ns.index)
    others = pd.DataFrame({"lost": lost_ns, "queued": queued}).reindex(peers).dropna().median()
    if not others.get("queued", 0.0) > 0:
        return lost_ns
    times = max(1.0, float(others["lost"] / others["queued"]))
    return lost_ns.where(~(queued * times < lost_ns), queued * times)


def _queued_ns(account: Account) -> pd.Series[float]:
    """Return for how long the training thread of each rank waited for a processor per step, ns.

    Of the time that the probe accounted for, start and steps that are not analysed included. Empty where
    the kernel did not count.
    """
    rows = account.trace.frame("recording").dropna(subset=["queued_ns"])
    sums = rows.groupby("rank")[["queued_ns", "dur_ns"]].sum().astype("float64")
    sums = sums[sums["dur_ns"] > 0]
    return sums["queued_ns"] / sums["dur_ns"] * account.windows.step_time_ns


def queued_beside_peers(account: Account, rank: int) -> Message | None:
    """Return how long the kernel counts that a rank and its peers wait for a processor; None if not counted."""
    queued = _queued_ns(account)
    peers = queued[queued.index.isin(account.peers_of(rank))]
    if rank not in queued.index or not peers.any():
        return None
    times = {"own_ns": float(queued[rank]), "peers_ns": float(peers.median())}
    return message("crowded.queued", each=per_step(account.windows), **times)


def chance_of_processors(account: Account, cost_frac: float) -> list[Message]:
    """Return what shows that delays by chance, on any rank, are waits for a processor; else nothing.

    All hosts are short of processors then, and what their ranks lose by it is most of what the delays cost.
    """
    found, lost = crowded(account), _off_in_passes_ns(account)
    by_host = _by_host(account)
    if not found or set(by_host) - set(found):
        return []
    said = []
    for host, ranks in by_host.items():
        share = _lost_frac(account, host, lost.reindex(ranks).dropna())
        if share < MIN_OFF * cost_frac:
            return []
        said.append(message("crowded.delays_any", shortage=found[host], share=share))
    return said


def _by_host(account: Account) -> dict[str, list[int]]:
    """Return the analysed ranks of each host, in order."""
    by_host: dict[str, list[int]] = {}
    for rank in account.windows.ranks.tolist():
        by_host.setdefault(account.trace.clock_of(rank), []).append(rank)
    return by_host


def _lost_frac(account: Account, host: str, lost_ns: pd.Series[float]) -> float:
    """Return what the ranks of a host lose without a processor, as a share of the step.

    No more than the share of time in which a task of the host waited for one, where that was sampled: a
    rank that sleeps waits for none.
    """
    if lost_ns.empty:
        return 0.0
    share = float(lost_ns.median()) / account.windows.step_time_ns
    samples = account.trace.frame("host_sample")
    stall = samples.loc[samples["host"].astype(str) == host, "cpu_stall_frac"].dropna()
    return share if stall.empty else min(share, float(stall.median()))


def crowded_hosts(account: Account) -> Iterator[Finding]:
    """Hosts with more to run than processors: said once, whatever is late because of it."""
    lost, by_host = _off_in_passes_ns(account), _by_host(account)
    for host, shortage in crowded(account).items():
        ranks = by_host.get(host, [])
        if not ranks:
            continue
        share = _lost_frac(account, host, lost.reindex(ranks).dropna())
        is_most = severity(share) is Severity.CRITICAL
        yield Finding(
            kind=FindingKind.HOST_STALL,
            severity=Severity.CRITICAL if is_most else Severity.WARNING,
            where={"host": host},
            claim=message("crowded.claim", shortage=shortage),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=0.9,
            evidence=(
                message("crowded.ranks_there", ranks=ranks),
                *_lost(account, share, lost.reindex(ranks).dropna()),
            ),
            remedy=PROCESSORS_FIRST,
            cause=CONTENTION,
        )


def _lost(account: Account, share: float, lost_ns: pd.Series[float]) -> Iterator[Message]:
    """Say how long the ranks of a host had work and no processor."""
    if lost_ns.empty:
        return
    step_ns = account.windows.step_time_ns
    yield message("crowded.lost", median_ns=share * step_ns, share=share)
    if len(lost_ns) > 1 and share * step_ns > 0.999 * float(lost_ns.median()):
        ends = {"least_ns": float(lost_ns.min()), "most_ns": float(lost_ns.max())}
        yield message("crowded.lost_by_rank", **ends)


def _off_in_passes_ns(account: Account) -> pd.Series[float]:
    """Return for how long each rank was without a processor inside its passes per step, ns.

    Between them it may sleep, as a loop does that waits for data.
    """
    return _beyond_cpu_ns(account, list(_PASSES))


def _without_processor_ns(account: Account) -> pd.Series[float]:
    """Return for how long each rank had work and no processor per step, ns.

    That is what its passes take outside of communication, and what lies between them, beyond the CPU
    time of the passes. Empty where no CPU time was recorded.
    """
    return _beyond_cpu_ns(account, [*_PASSES, UNATTRIBUTED])


def _beyond_cpu_ns(account: Account, classes: list[str]) -> pd.Series[float]:
    """Return what classes of the ledger take beyond the CPU time of the passes, per rank and step."""
    cpu = _cpu_ns(account)
    if cpu.empty:
        return cpu
    own = account.ledger.by_step.groupby("rank")[classes].mean().sum(axis=1)
    return (own - cpu).dropna().clip(lower=0.0)


def _cpu_ns(account: Account) -> pd.Series[float]:
    """Return the CPU time of the passes of each rank per step, ns; empty where none was recorded."""
    spans = account.windows.select(account.trace.frame("span"))
    spans = spans[spans["kind"].isin(_PASSES) & spans["cpu_ns"].notna()]
    if spans.empty:
        return pd.Series(dtype="float64")
    steps = len(account.windows.steps)
    return spans["cpu_ns"].astype("float64").groupby(spans["rank"]).sum() / steps
