"""The resolution of stamps is that of the capture, and order within it is the program's."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.ndtimeline_jobs import JobShape, job_frame, write_frame

from meshscope.analyze.align.clocks.stamps import LEAST_NS, settled
from meshscope.analyze.load.load import load_trace

SHAPE = JobShape(pp=2, dp=2, steps=6, noise=0.02)


def job(noise_us=0.0, aside_us=0.0, seed=0, times=1):
    """Return rows in which each activity begins when the one before it on its worker ends.

    Args:
        noise_us: Standard deviation of every stamp.
        aside_us: How long each activity goes on beside the next.
        seed: Of the noise.
        times: By what activities are longer.
    """
    random = np.random.default_rng(seed)
    frame = job_frame(SHAPE).astype({"start_ts": float, "duration": float})
    frame = frame.sort_values(["rank", "step", "start_ts"], ignore_index=True)
    frame["duration"] *= times
    # A reduction of no length in the midst of others would be a second one at the same instant.
    frame = frame[frame["duration"] > 0].reset_index(drop=True)
    before = frame.groupby(["rank", "step"])["duration"].cumsum() - frame["duration"]
    frame["start_ts"] = before
    frame["duration"] += aside_us * 1e-6
    if noise_us:
        start = frame["start_ts"] + random.normal(0, noise_us * 1e-6, len(frame))
        end = before + frame["duration"] + random.normal(0, noise_us * 1e-6, len(frame))
        frame["start_ts"], frame["duration"] = start, (end - start).clip(lower=0)
    return frame


def read(folder, frame):
    """Return the trace of such rows."""
    write_frame(folder, frame)
    return load_trace(folder)


def overlaps(trace):
    """Return by how much activities of a rank and step reach over the begin of the next, ns."""
    parts = []
    for name in ("span", "collective", "p2p"):
        table = trace.frame(name)
        end = table["start_ns"] + table["dur_ns"] if name == "span" else table["end_ns"]
        parts.append(table[["rank", "step", "start_ns"]].assign(end_ns=end.astype("int64")))
    rows = pd.concat(parts).sort_values(["rank", "step", "start_ns", "end_ns"])
    next_start = rows.groupby(["rank", "step"])["start_ns"].shift(-1)
    return (rows["end_ns"] - next_start).dropna().to_numpy()


def test_exact_stamps_have_the_least_resolution(tmp_path):
    """Every capture would be taken for an inexact one, and short gaps be closed."""
    assert settled(read(tmp_path, job())).resolution_ns == pytest.approx(LEAST_NS, rel=0.3)


@pytest.mark.parametrize(("noise_us", "times"), [(40, 1), (100, 1), (130, 1), (300, 10)])
def test_the_resolution_follows_the_noise(tmp_path, noise_us, times):
    """A wait that ends a little after the next operation begins would count as work."""
    found = settled(read(tmp_path, job(noise_us=noise_us, times=times)))
    assert 2 * noise_us * 1e3 < found.resolution_ns < 10 * noise_us * 1e3
    assert overlaps(found.trace).max() <= 0


def test_what_really_runs_aside_stays_so(tmp_path):
    """Transfers behind computing would be cut off, and look exposed."""
    trace = read(tmp_path, job(aside_us=5_000.0))
    found = settled(trace)
    assert found.resolution_ns < 1_000_000
    assert np.median(overlaps(found.trace)) == pytest.approx(5_000_000, rel=0.05)


def test_order_within_the_resolution_is_that_of_most_steps(tmp_path):
    """A rank would seem to run other operations in some steps, and have no peer there."""
    frame = job(noise_us=40)
    exact = read(tmp_path, job()).frame("p2p").sort_values(["rank", "step", "start_ns"])
    (tmp_path / "noisy").mkdir()
    noisy = settled(read(tmp_path / "noisy", frame)).trace.frame("p2p")
    noisy = noisy.sort_values(["rank", "step", "start_ns"])
    for column in ("direction", "seq"):
        same = exact[column].to_numpy() == noisy[column].to_numpy()
        assert same.mean() > 0.99


def test_operations_that_come_first_equally_often_have_one_order(tmp_path):
    """Fails when the order of two posts at one instant is chance: a slow rank would have no peer in such steps."""
    frame = job()
    # The first receive of the first stage begins as its first send does, before or after it by turns.
    sends = frame[frame["optype"] == "forward-send"].groupby(["rank", "step"])["start_ts"].first()
    turn = np.where(frame["step"].rank(method="dense") % 2, 5e-6, -5e-6)
    begin = sends.reindex(pd.MultiIndex.from_frame(frame[["rank", "step"]])).to_numpy() + turn
    receives = frame["optype"].eq("backward-recv") & frame["seq_id"].eq(0) & frame["stage"].eq(0)
    frame["start_ts"] = np.where(receives, begin, frame["start_ts"])
    rows = settled(read(tmp_path, frame)).trace.frame("p2p")
    rows = rows[rows["rank"] < SHAPE.dp].sort_values(["rank", "step", "start_ns"])
    assert rows.groupby(["rank", "step"])["direction"].first().nunique() == 1


def test_an_order_that_is_turned_once_shows_how_inexact_stamps_are(tmp_path):
    """A rank would do other things first in one step, and nobody would wait for it there."""
    frame = job(noise_us=40)
    seen = settled(read(tmp_path, frame)).resolution_ns
    # The operation before the last takes no time, and in one step its stamp is late.
    first = frame["optype"].eq("optimizer-clip-main-grad")
    frame.loc[first, "duration"] = 0.0
    own = frame["rank"].eq(0) & frame["step"].eq(frame["step"].max())
    before, last = frame[own].sort_values("start_ts").index[-2:]
    assert first[before]
    frame.loc[before, "start_ts"] = frame.loc[last, "start_ts"] + 1.5e-9 * seen
    (tmp_path / "turned").mkdir()
    found = settled(read(tmp_path / "turned", frame))
    assert found.resolution_ns > 1.5 * seen
    joins = found.trace.frame("collective").query("rank == 0").groupby("step")["start_ns"].max()
    spans = found.trace.frame("span").query("rank == 0").groupby("step")["start_ns"].max()
    assert (joins <= spans).all()


def test_unknown_ends_stay_unknown(tmp_path):
    """An operation whose end nobody saw would get one."""
    trace = read(tmp_path, job(noise_us=40))
    table = trace.tables["p2p"]
    place = table.schema.get_field_index("end_ns")
    ends = table["end_ns"].to_pylist()
    ends[0] = None
    unknown = table.set_column(place, table.schema.field("end_ns"), pa.array(ends, pa.int64()))
    found = settled(trace.with_tables({"p2p": unknown})).trace
    assert found.tables["p2p"]["end_ns"].null_count == 1
