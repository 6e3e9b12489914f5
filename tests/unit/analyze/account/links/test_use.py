"""Ports of two hosts whose counters follow from the phases by algebra.

Four replicas, two on each of hosts a and b. A step is 30 % forward, 30 % backward, 30 % gradient sum,
10 % optimizer. Counters grow in the gradient sum alone: 0.97 GB/s on a and 0.60 on b of 1 GB/s.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.links.phases import Phase, phase_rates
from meshscope.analyze.account.links.use import link_use
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.output.json.links import links_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text.links import link_blocks
from meshscope.analyze.tables.trace import Card, Machine
from meshscope.probe.schema.layout import ParallelLayout

MS = 1_000_000
HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
RATES = {"a": 0.97, "b": 0.60}
SIZE = 100_000_000
STEPS = 20


def capture(step_ms=1000, every_ms=250, rates=RATES, faults=(), **changes):
    """Return the capture.

    Args:
        step_ms: Length of a step.
        every_ms: Between two samples.
        rates: Bytes per ns in the gradient sum, by host.
        faults: Steps in which the port of host a retransmits and the sums take twice as long.
        changes: Bytes per ns all the time, by host, beside them.
    """
    length = step_ms * MS
    rows = {"step": [], "span": [], "collective": [], "link_sample": []}
    for rank in HOSTS:
        for step in range(STEPS):
            begin = step * length
            row = {"rank": rank, "step": step}
            rows["step"].append({**row, "start_ns": begin, "dur_ns": length})
            for kind, first, last in (
                ("forward", 0.0, 0.3),
                ("backward", 0.3, 0.6),
                ("optimizer", 0.9, 1.0),
            ):
                where = {"start_ns": begin + round(first * length)}
                rows["span"].append(
                    {**row, **where, "kind": kind, "dur_ns": round((last - first) * length)}
                )
            end = begin + round((0.9 if step in faults or not faults else 0.75) * length)
            rows["collective"].append(
                {
                    **row,
                    "seq": step,
                    "size_bytes": SIZE,
                    "start_ns": begin + round(0.6 * length),
                    "end_ns": end,
                }
            )
    times = np.arange(20 * MS, STEPS * length, every_ms * MS)
    whole, part = np.divmod(times, length)
    inside = whole * 0.3 * length + np.clip(part - 0.6 * length, 0, 0.3 * length)
    for host, rate in rates.items():
        sent = np.rint(rate * inside + changes.get(host, 0.0) * times).astype(int)
        bad = [sum((step + 0.7) * length < time for step in faults) for time in times.tolist()]
        rows["link_sample"] += [
            {
                "host": host,
                "time_ns": int(time),
                "tx_bytes": int(size),
                "rx_bytes": 0,
                "retries": count if host == "a" else 0,
            }
            for time, size, count in zip(times, sent, bad, strict=True)
        ]
    trace = trace_of(
        layout=ParallelLayout(dp=4),
        run={"world_size": 4},
        group=[{"group_id": "g", "axis": "dp", "ranks": [0, 1, 2, 3]}],
        **rows,
    )
    return replace(trace, clocks=HOSTS)


def used(trace):
    """Return the use of links of a capture."""
    windows = step_windows(trace)
    return link_use(trace, windows, communication_events(trace, windows))


def port(found, host, direction="tx"):
    """Return one direction of the port of a host."""
    return next(p for p in found.ports if p.host == host and p.direction == direction)


@pytest.mark.parametrize(("step_ms", "every_ms"), [(1000, 250), (900, 1000), (370, 1000)])
def test_rates_in_phases(step_ms, every_ms):
    """Fails when pooled samples, also those longer than a step, do not give the rate of a phase."""
    found = used(capture(step_ms, every_ms))
    for host, rate in RATES.items():
        rates = port(found, host).rates
        assert rates[Phase.GRADIENT_SUM] == pytest.approx(rate * 1e9, rel=0.01)
        assert rates[Phase.FORWARD] == pytest.approx(0, abs=1e7)
        assert rates[Phase.OPTIMIZER] == pytest.approx(0, abs=2e7)
        mean = port(found, host).mean_bytes_per_s
        assert mean == pytest.approx(0.3 * rate * 1e9, rel=0.05)


def test_samples_that_hold_whole_steps_resolve_nothing():
    """Fails when rates are made up although each interval holds the same mix of phases."""
    found = used(capture(100, 1000))
    assert set(port(found, "a").rates.values()) == {None}
    text = to_plain(link_blocks(links_to_json(found)))
    assert "not resolved" in text


def test_noise_widens_the_error():
    """Fails when the standard error of a rate does not cover its error."""
    random = np.random.default_rng(7)
    inside = random.random((400, 2)) * 1e9
    grown = inside @ np.array([0.5, 0.2]) + random.normal(0, 1e7, 400)
    rate, error = phase_rates(grown, inside)
    assert np.all(np.abs(rate - [5e8, 2e8]) < 4 * error)
    assert np.all(error < 5e6)


def test_recorded_bytes_leave_a_host_once():
    """Fails when a ring over two hosts is counted by rank: 2 (n - 1) / n leaves each host once."""
    found = used(capture())
    assert [(one.host, one.sent_bytes) for one in found.axes] == [
        ("a", 1.5 * SIZE),
        ("b", 1.5 * SIZE),
    ]
    assert found.axes[0].busy_ns == pytest.approx(300 * MS)


def findings(trace):
    """Return the causes of the findings about ports, with where."""
    return [f for f in diagnose(trace).findings if f.kind == "network_port"]


def test_a_full_port_is_named():
    """Fails when a port at 97 % beside peers at 60 % is not named with phase and groups."""
    own = {"a": 0.97, "b": 0.60}
    # What is recorded fits what is counted on b; a has more.
    (found, *_) = [f for f in findings(capture(rates=own)) if f.cause == "saturated"]
    assert (found.where["host"], found.where["link"]) == ("a", "p")
    assert "97 % of its speed in the gradient sum, other hosts at 60 %" in str(found.claim)
    assert any("g (DP)" in str(line) for line in found.evidence)
    # Exposed for 30 % of the step; at the peers' load it would be 60 / 97 of that.
    assert found.cost_frac == pytest.approx(0.3 * (1 - 0.60 / 0.97), rel=0.02)


def test_equal_ports_are_not_blamed():
    """Fails when ports that are all full, or none, raise a finding."""
    for rate in (0.97, 0.5):
        causes = [f.cause for f in findings(capture(rates={"a": rate, "b": rate}))]
        assert "saturated" not in causes


def test_traffic_of_others():
    """Fails when bytes that nobody recorded are not said, or recorded ones are called foreign."""
    # 1.5 x 100 MB in 300 ms are 0.5 GB/s.
    assert findings(capture(rates={"a": 0.5, "b": 0.5})) == []
    (found,) = findings(capture(rates={"a": 0.5, "b": 0.5}, a=0.2))
    assert (found.cause, found.where["host"]) == ("other_traffic", "a")
    assert "190 MB/s that no recorded operation explains, 19 % of its ports" in str(found.claim)
    (one, _) = used(capture(rates={"a": 0.5, "b": 0.5}, a=0.2)).traffic
    assert one.counted_bytes_per_s == pytest.approx(0.35e9, rel=0.02)
    assert one.recorded_bytes_per_s == pytest.approx(0.15e9, rel=0.06)


def test_retransmissions_beside_slow_sums():
    """Fails when retransmissions in the steps whose sums take twice as long are not named."""
    slow = (4, 9, 15)
    (found,) = [
        f for f in findings(capture(rates={"a": 0.4, "b": 0.4}, faults=slow)) if f.cause == "faults"
    ]
    assert found.where["host"] == "a"
    assert "3 retransmissions" in str(found.claim)
    assert any("2.00 x the wire time" in str(line) for line in found.evidence)


@pytest.mark.parametrize("name", ["congestion", "wait"])
def test_pauses_beside_slow_sums(name):
    """Fails when a port that is held back in the steps whose sums take twice as long is not named."""
    slow = (4, 9, 15)
    trace = capture(rates={"a": 0.4, "b": 0.4}, faults=slow)

    def paused(rows, trace=trace):
        """Return the samples with pauses in place of retransmissions, and a few all the time."""
        rows = [
            {**row, "retries": 0, name: 100 * row["retries"] + at % 80}
            for at, row in enumerate(rows)
        ]
        table = trace_of(link_sample=rows).tables["link_sample"]
        return trace.with_tables({"link_sample": table})

    rows = trace.frame("link_sample").to_dict("records")
    (found,) = findings(paused(rows))
    assert (found.cause, found.where["host"]) == ("pauses", "a")
    noun = {"congestion": "congestion notifications", "wait": "wait ticks"}[name]
    assert noun in str(found.claim)
    assert any("2.00 x the wire time" in str(line) for line in found.evidence)
    # Two steps may be slow by chance. All the time alike, pauses explain nothing.
    few = capture(rates={"a": 0.4, "b": 0.4}, faults=slow[:2])
    assert findings(paused(few.frame("link_sample").to_dict("records"), few)) == []
    assert findings(paused([{**row, "retries": 0} for row in rows])) == []


def test_unknown_is_said():
    """Fails when a capture without samples claims to know its links."""
    trace = capture().with_tables({"link_sample": capture().tables["link_sample"][:0]})
    found = used(trace)
    assert (found.unknown, found.ports) == ("samples", ())
    assert "unknown" in to_plain(link_blocks(links_to_json(found)))


def test_a_speed_that_cannot_be_true():
    """Fails when a port is said to run above its speed."""
    found = used(capture(rates={"a": 5.0, "b": 5.0}))
    assert {one.speed_bytes_per_s for one in found.ports if one.direction == "tx"} == {None}
    assert port(found, "a").used(1e9) is None


def stated(trace, gbit_per_s=16, name="p", machines=("node1", "node2")):
    """Return a capture whose topology file states the speed of the card of each host."""
    card = Card(name=name, socket=None, bytes_per_s=gbit_per_s * 1e9 / 8, ranks=())
    found = [
        Machine(name=own, ranks=ranks, cards=(card,))
        for own, ranks in zip(machines, ((0, 1), (2, 3)), strict=True)
    ]
    return replace(trace, machines=tuple(found), _frames={})


def without_speed(trace):
    """Return a capture whose ports did not say their speed."""
    samples = trace.frame("link_sample")[["host", "port", "time_ns", "tx_bytes", "rx_bytes"]]
    rows = [{**row, "speed_bytes_per_s": None} for row in samples.to_dict("records")]
    table = trace_of(link_sample=rows).tables["link_sample"]
    return trace.with_tables({"link_sample": table})


def test_stated_speeds_are_peaks():
    """Fails when the share of a port ignores the speed in the topology file, which the port itself does not say."""
    trace = without_speed(capture())
    assert port(used(trace), "a").speed_bytes_per_s is None
    assert port(used(stated(trace)), "a").speed_bytes_per_s == 2e9
    # What is stated goes before what the counters say.
    assert port(used(stated(capture())), "a").used(1e9) == 0.5
    assert port(used(stated(trace, name="other")), "a").speed_bytes_per_s is None
    samples = [
        {**row, "port": "p/1", "speed_bytes_per_s": None}
        for row in trace.frame("link_sample").to_dict("records")
    ]
    renamed = trace.with_tables(
        {"link_sample": trace_of(link_sample=samples).tables["link_sample"]}
    )
    assert port(used(stated(renamed, name="p")), "a").speed_bytes_per_s == 2e9


def test_traffic_of_others_through_ports_of_unknown_speed():
    """Fails when another job on the same port is not said, because the port does not say its speed."""
    (found,) = findings(without_speed(capture(rates={"a": 0.5, "b": 0.5}, a=0.25)))
    assert (found.cause, found.where["host"]) == ("other_traffic", "a")
    assert "of its ports" not in str(found.claim)
    # Less than the job's own is not far above it.
    assert findings(without_speed(capture(rates={"a": 0.5, "b": 0.5}, a=0.1))) == []


def test_counters_that_go_back_lose_one_interval():
    """Fails when a counter that wraps or starts again makes a rate that is negative or above all others."""
    trace = capture()
    samples = trace.frame("link_sample")
    for back in (
        samples["tx_bytes"] % (1 << 32),
        samples["tx_bytes"].mask(samples.index % 40 == 7, 0),
    ):
        rows = samples.assign(tx_bytes=back).to_dict("records")
        table = trace_of(link_sample=rows).tables["link_sample"]
        found = port(used(trace.with_tables({"link_sample": table})), "a")
        whole = port(used(trace), "a")
        assert found.intervals < whole.intervals
        assert found.rates[Phase.GRADIENT_SUM] == pytest.approx(0.97e9, rel=0.01)


def test_links_of_devices_have_their_peaks():
    """Fails when NVLink and PCIe are shown without the share of what they carry."""
    trace = capture()
    rows = trace.frame("link_sample").to_dict("records")
    samples = [
        {"host": row["host"], "uuid": f"GPU-{row['host']}", "time_ns": row["time_ns"]}
        | {"nvlink_tx_bytes": row["tx_bytes"], "pcie_tx_bytes": row["tx_bytes"]}
        for row in rows
    ]
    speeds = {"pcie_bytes_per_s": 2e9, "nvlink_bytes_per_s": 10e9}
    tables = trace_of(
        device_sample=samples,
        device=[{"uuid": "GPU-a", "host": "a", **speeds}, {"uuid": "GPU-b", "host": "b"}],
    ).tables
    found = used(trace.with_tables({name: tables[name] for name in ("device_sample", "device")}))
    speed = {(one.host, one.kind): one.speed_bytes_per_s for one in found.ports}
    assert (speed["a", "pcie"], speed["a", "nvlink"]) == (2e9, 10e9)
    assert {speed["b", kind] for kind in ("pcie", "nvlink")} == {None}
    of = next(one for one in found.ports if (one.host, one.kind) == ("a", "nvlink"))
    assert of.used(of.rates[Phase.GRADIENT_SUM]) == pytest.approx(0.097, rel=0.01)
