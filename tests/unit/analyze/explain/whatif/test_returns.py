"""Changes of the transfers by replay, against the step times that algebra gives."""

import dataclasses

import pytest
from tests.tables import trace_of

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.explain.whatif.returns import transfer_returns
from meshscope.analyze.explain.whatif.transfers import bucket_bytes
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.output.json import collectives_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import collectives_document
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

MS = 1_000_000
FIXED_MS, PER_MB_MS = 2, 10
STEPS = 4


def job(sizes_mb=(1, 3), dtype="float32", ranks=2, hosts=(), inner=()):
    """Return a job whose ranks compute 50 ms, then sum buckets one after the other, blocking.

    Args:
        sizes_mb: Of the buckets.
        dtype: Of the gradients.
        ranks: How many, all in one group.
        hosts: Of each rank.
        inner: Wire times, ms, and MB of sums of pairs of ranks before that, on the axis tp.
    """
    rows = {"step": [], "span": [], "collective": []}
    length = 50 + sum(wire for wire, _ in inner) + sum(FIXED_MS + PER_MB_MS * mb for mb in sizes_mb)
    for step in range(STEPS):
        begin = step * length * MS
        for rank in range(ranks):
            rows["step"].append(
                {"rank": rank, "step": step, "start_ns": begin, "dur_ns": length * MS}
            )
            place = {"rank": rank, "step": step}
            at, ops = 50, []
            rows["span"].append({**place, "kind": "backward", "start_ns": begin, "dur_ns": 50 * MS})
            pair = {"group_id": f"t{rank // 2}", "axis": "tp", "dtype": dtype}
            ops += [(wire, mb, pair) for wire, mb in inner]
            ops += [(FIXED_MS + PER_MB_MS * mb, mb, {"dtype": dtype}) for mb in sizes_mb]
            for number, (wire, mb, more) in enumerate(ops):
                rows["collective"].append(
                    {
                        **place,
                        "seq": 100 * step + number,
                        "size_bytes": mb * 1_000_000,
                        "start_ns": begin + at * MS,
                        "end_ns": begin + (at + wire) * MS,
                        "wait_start_ns": begin + at * MS,
                        "wait_end_ns": begin + (at + wire) * MS,
                        **more,
                    }
                )
                at += wire
    groups = [{"group_id": "g", "axis": "dp", "ranks": list(range(ranks))}]
    groups += [
        {"group_id": f"t{at}", "axis": "tp", "ranks": [2 * at, 2 * at + 1]}
        for at in range(ranks // 2 if inner else 0)
    ]
    layout = ParallelLayout(tp=2, dp=ranks // 2) if inner else ParallelLayout(dp=ranks)
    trace = trace_of(layout=layout, group=groups, **rows)
    return dataclasses.replace(trace, clocks=dict(enumerate(hosts)))


def then_ms(trace, *settings):
    """Return the predicted step time."""
    return predict(measure(trace), parse_changes([], list(settings))).predicted_ns / MS


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 0.5), ("int8", 0.25)])
def test_a_narrower_type_shortens_what_depends_on_the_size(dtype, share):
    """Fails when latency is compressed too, or the bytes by another factor."""
    wanted = 50 + 2 * FIXED_MS + PER_MB_MS * 4 * share
    assert then_ms(job(), f"dtype.dp={dtype}") == pytest.approx(wanted, rel=1e-3)


def test_one_bucket_saves_a_latency():
    """Fails when merged buckets take as many latencies, or other bytes."""
    assert then_ms(job(), "bucket.dp=one") == pytest.approx(50 + FIXED_MS + 4 * PER_MB_MS, rel=1e-3)


def test_small_buckets_pay_latencies():
    """Fails when more operations cost nothing though all wait for the same gradients."""
    trace = job()
    many = then_ms(trace, "bucket.dp=100kB")
    assert many > measure(trace).windows.step_time_ns / MS + 1


def test_two_levels_by_formula():
    """Fails when sums in two levels are not hops and bytes of both levels."""
    inner = [(3, 1), (9, 4)]  # 2 hops in 1 ms, and 2 ms for each MB moved by a pair.
    trace = job(ranks=4, hosts=["a", "a", "b", "b"], inner=inner)
    between = [FIXED_MS / 3 + PER_MB_MS * mb * (1 / 2) / (3 / 4) for mb in (1, 3)]
    inside = [2 * 1 * 0.5 + 2 * 0.5 * mb * 2 for mb in (1, 3)]
    wanted = 50 + 12 + sum(between) + sum(inside)
    assert then_ms(trace, "hierarchy.dp=on") == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize(
    ("trace", "setting", "message"),
    [
        (job(dtype="bfloat16"), "dtype.dp=bf16", "wider floating type"),
        (job(dtype="int64"), "dtype.dp=int8", "wider floating type"),
        (job(), "dtype.dp=int4", "not a type"),
        (job(), "bucket.dp=many", "not a bucket size"),
        (job(), "hierarchy.dp=on", "hosts of some ranks are unknown"),
        (job(hosts=["a", "b"]), "hierarchy.dp=on", "two ranks on each"),
        (job(), "dtype.pp=bf16", "no axis 'pp'"),
    ],
)
def test_what_cannot_be_changed_is_refused(trace, setting, message):
    """Fails when a change without an object gives a number."""
    with pytest.raises(ConfigError, match=message):
        then_ms(trace, setting)


def test_the_list_agrees_with_single_predictions():
    """Fails when the list of changes and ``whatif`` disagree, or an interval leaves out its gain."""
    trace = job()
    account = measure(trace)
    found = transfer_returns(account)
    assert {(one.change.value, one.value) for one in found} >= {
        ("dtype", "bf16"),
        ("dtype", "int8"),
    }
    for one in found:
        if one.gain is None:
            continue
        setting = f"{one.change.value}.{one.axis}={one.value}"
        step_ms = account.windows.step_time_ns / MS
        assert one.gain.gain_ns / MS == pytest.approx(step_ms - then_ms(trace, setting), abs=1e-3)
        assert one.gain.low_ns <= one.gain.gain_ns <= one.gain.high_ns


def test_the_command_lists_them():
    """Fails when the list is lost on its way to the reader, or names no command."""
    result = collectives_to_json(job())
    text = to_plain(collectives_document(result))
    assert "--set dtype.dp=bf16" in text
    assert "two levels on DP unknown: hosts of some ranks are unknown" in text
    row = next(row for row in result["changes"] if row["setting"] == "dtype.dp=bf16")
    assert row["bytes_then"] == row["bytes_now"] / 2


def test_sizes_of_buckets():
    """Fails when a unit is off by its factor."""
    assert [bucket_bytes(text) for text in ("25MB", "1MiB", "2.5kB", "one")] == [
        25e6,
        1 << 20,
        2500,
        None,
    ]
