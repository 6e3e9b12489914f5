"""Hosts whose processors are short, where the host itself moves the data.

Without a device that communicates, threads of the ranks copy and send. On a host with more
to run than processors they wait for one, and every transfer looks slow: the wire is not
to be told from the processor then, and the processor is the likelier of the two. So is it for
a rank that is late without using its processor more than its peers.
"""

from __future__ import annotations

import numpy as np

from ..account import Account

MIN_LOAD = 1.5
"""Runnable tasks a processor from which on a host is short of them."""
CONFIDENCE = 0.3
"""Of a finding about a wire whose ends are on such hosts."""
REMEDY = (
    "Give the ranks enough processors first, and diagnose again: other processes, threads of each rank "
    "(OMP_NUM_THREADS), limits of the container; then, if transfers stay slow: "
)


def starved_hosts(account: Account) -> dict[str, str]:
    """Return the hosts of ranks that were short of processors, each with how short they were.

    Nothing where transfers were not timed on the host, or no host was sampled.
    """
    frame, trace = account.events.frame, account.trace
    if frame.empty or not frame["host"].all() or not trace.row_count("host_sample"):
        return {}
    samples = trace.frame("host_sample")[["host", "cpus", "load_1m"]].dropna()
    usual = samples.groupby(samples["host"].astype(str))[["load_1m", "cpus"]].median()
    found = {}
    hosts = {trace.clock_of(rank) for rank in trace.ranks if rank in trace.clocks}
    for host in sorted(hosts.intersection(usual.index)):
        load, cpus = map(float, usual.loc[host].to_numpy(np.float64))
        if load >= MIN_LOAD * cpus:
            found[host] = f"host {host} has {load:.0f} tasks to run on {cpus:.0f} processors"
    return found


def starved_ends(account: Account, ranks: list[int]) -> list[str]:
    """Return what shows that all of some ranks are on hosts short of processors; else nothing."""
    starved = starved_hosts(account)
    clocks = account.trace.clocks
    hosts = {account.trace.clock_of(rank) for rank in ranks if rank in clocks}
    if not hosts or not hosts <= set(starved):
        return []
    return [
        f"{starved[host]}, and its processors move the data: that they are short explains slow transfers "
        "better than a wire"
        for host in sorted(hosts)
    ]


def starved_rank(account: Account, rank: int) -> str:
    """Return what shows that a rank is on a host short of processors; nothing where it is not."""
    if rank not in account.trace.clocks:
        return ""
    found = starved_hosts(account).get(account.trace.clock_of(rank), "")
    return found and f"{found}: a rank that waits for one is late without being slow"
