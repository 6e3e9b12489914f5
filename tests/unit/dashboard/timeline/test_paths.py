"""The critical path as it is drawn: where it lies, what is outlined, and what is said of it."""

import re

import numpy as np
import pandas as pd
import pytest
from tests.ndtimeline_jobs import JobShape, job_frame, write_frame
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.critical_path import CriticalPath
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.output.timeline.categories import Category
from meshscope.analyze.output.timeline.slices import step_slices
from meshscope.dashboard.figures.critical_path import NAME, path_traces
from meshscope.dashboard.figures.timeline import timeline
from meshscope.dashboard.timeline.path_words import path_sentence
from meshscope.dashboard.timeline.paths import (
    MAX_PIECES,
    LastAccount,
    StepPath,
    on_rows,
    outlines,
    step_path,
)
from meshscope.probe.schema.layout import ParallelLayout

STEP = 2
WORK = uniform(10 * MS, 20 * MS)
PIPELINE = Job(layout=ParallelLayout(pp=2, dp=2), steps=4)


def _slow(kind, rank, step, microbatch):
    return WORK(kind, rank, step, microbatch) * (2 if rank == 1 else 1)


@pytest.fixture(scope="module")
def shown():
    """Return the drawn step of a job with a slow rank, and its path."""
    trace = capture(PIPELINE, _slow)
    drawn = step_slices(trace, STEP)
    return drawn, step_path(measure(trace), drawn)


def _path(pieces) -> StepPath:
    """Return a path of (row, start, end) or (row, start, end, class), in ns."""
    rows = [(*piece, "forward")[:4] for piece in pieces]
    frame = pd.DataFrame(rows, columns=["row", "start_ns", "end_ns", "class"])
    frame = frame.assign(rank=frame["row"], stage=0, microbatch=-1, group_id="", link="").assign(
        dur_ns=frame["end_ns"] - frame["start_ns"]
    )
    end = int(frame["end_ns"].max())
    return StepPath(path=CriticalPath(step=0, start_ns=0, end_ns=end, pieces=frame))


def _bars(traces):
    return next(trace for trace in traces if trace.name == NAME)


def test_the_path_lies_on_what_is_drawn(shown):
    """Fails when the outlines are beside the bars that they are about."""
    drawn, path = shown
    pieces = path.path.pieces
    work = pieces[pieces["class"].isin(["forward", "backward"])]
    assert len(work) >= 8
    for piece in work.rename(columns={"class": "kind"}).itertuples():
        category = Category.FORWARD if piece.kind == "forward" else Category.BACKWARD
        slices = drawn.slices[drawn.slices["rank"] == piece.rank]
        inside = slices[(slices["start_ns"] <= piece.start_ns) & (slices["end_ns"] >= piece.end_ns)]
        assert inside["category"].tolist() == [category]
        assert inside["row"].tolist() == [piece.row]
    assert pieces["end_ns"].max() == drawn.length_ns


def test_the_outlines_of_a_window_are_cut_at_it(shown):
    """Fails when a zoomed view draws outside itself, or loses a piece of the path."""
    _, path = shown
    pieces = path.path.pieces
    middle = (int(pieces["start_ns"].iloc[2]) + 1, int(pieces["end_ns"].iloc[8]) - 1)
    found = outlines(path, middle)
    assert (found.pieces["end_ns"] - found.pieces["start_ns"]).sum() == middle[1] - middle[0]
    assert len(found.pieces) == 7
    bars = _bars(path_traces(found))
    assert next(iter(bars.base)) == middle[0] / 1e6
    assert sum(bars.x) == pytest.approx((middle[1] - middle[0]) / 1e6)


def test_a_line_leads_from_rank_to_rank():
    """Fails when a reader cannot follow the path to the rank that was waited for."""
    found = outlines(_path([(0, 0, 4), (0, 4, 6), (2, 6, 9), (1, 9, 10)]), (0, 10))
    assert found.jumps.to_numpy().tolist() == [[6, 0, 2], [9, 2, 1]]
    assert found.stretches["row"].tolist() == [0, 2, 1]
    assert found.stretches["end_ns"].tolist() == [6, 9, 10]
    jumps, frames, bars = path_traces(found)
    part = outlines(on_rows(_path([(0, 0, 4), (2, 4, 6), (1, 6, 9), (0, 9, 10)]), (1, 0)), (0, 10))
    assert part.jumps.to_numpy().tolist() == [[9, 0, 1]]
    assert part.stretches["row"].tolist() == [1, 0, 1]
    assert len(part.pieces) == 3
    assert list(jumps.y)[:2] == [0, 2]
    assert list(jumps.x)[:2] == [6e-6, 6e-6]
    assert np.isnan(list(jumps.x)[2])
    assert len(frames.x) == 3 * 6
    assert len(bars.x) == 4


def test_a_window_beside_the_path_is_empty():
    """Fails when zooming to where nothing is on the path raises."""
    found = outlines(_path([(0, 0, 4)]), (5, 9))
    assert [len(part) for part in (found.stretches, found.pieces, found.jumps)] == [0, 0, 0]
    assert len(path_traces(found)) == 3


def test_many_pieces_are_drawn_as_stretches():
    """Fails when a path of thousands of kernels makes the page too slow, or is cut silently."""
    one_rank = _path([(0, at, at + 1, "compute") for at in range(MAX_PIECES + 5)])
    found = outlines(one_rank, (0, MAX_PIECES + 5))
    assert found.left_out == 0
    assert found.pieces["pieces"].tolist() == [MAX_PIECES + 5]
    assert f"{MAX_PIECES + 5:,} pieces" in _bars(path_traces(found)).hovertext[0]
    jumping = _path([(at % 2, 10 * at, 10 * at + 10) for at in range(MAX_PIECES + 5)])
    found = outlines(jumping, (0, 10 * (MAX_PIECES + 5)))
    assert (len(found.pieces), found.left_out) == (MAX_PIECES, 5)


def test_a_piece_says_what_it_is(shown):
    """Fails when a hover does not name class, length, and the link or group of a transfer."""
    drawn, path = shown
    texts = list(_bars(path_traces(outlines(path, (0, drawn.length_ns)))).hovertext)
    assert any("forward: 20 ms<br>microbatch" in text for text in texts)
    assert any("PP communication: on the wire" in text and "link 1->3" in text for text in texts)
    assert any("DP communication: on the wire" in text and "group dp-0" in text for text in texts)


def test_the_path_lies_over_a_picture_too(shown):
    """Fails when the path cannot be seen where slices are too many for bars."""
    drawn, path = shown
    slices = pd.concat([drawn.slices] * 200, ignore_index=True)
    many = type(drawn)(
        **{name: getattr(drawn, name) for name in drawn.__slots__} | {"slices": slices}
    )
    window = (0, drawn.length_ns)
    figure = timeline(many, window, "/at.json?", outlines(path, window))
    assert len(figure.layout.images) == 1
    assert len(_bars(figure.data).x) == len(path.path.pieces)


def test_the_sentence_sums_to_the_whole(shown):
    """Fails when the per cents of the caption do not sum to 100, or its length is another."""
    _, path = shown
    text = path_sentence(path)
    classes = text.split(";")[0]
    assert sum(int(number) for number in re.findall(r"(\d+) %", classes)) == 100
    assert "backward" in classes
    assert "rank 1 holds" in text
    length = path.path.end_ns - path.path.start_ns
    assert path.total_ns() == length
    assert f"sum to {length / 1e6:.0f} ms" in text


def test_thirds_sum_to_the_whole():
    """Fails when rounding makes a path of three equal parts 99 %."""
    text = path_sentence(
        _path([(0, 0, 3, "forward"), (1, 3, 6, "backward"), (2, 6, 9, "exposed_other_wire")])
    )
    assert sorted(re.findall(r"(\d+) % (?:f|b|other t)", text)) == ["33", "33", "34"]
    assert "other transfers" in text
    assert "hold 67 % of it" in text
    assert "rank 0 holds all of it" in path_sentence(_path([(0, 0, 4)]))


def test_one_account_is_kept():
    """Fails when every step measures the run again, or all runs are held in memory."""
    first, second = capture(PIPELINE, WORK), capture(PIPELINE, _slow)
    accounts = LastAccount()
    found = accounts.of(first)
    assert accounts.of(first) is found
    assert accounts.of(second).trace is second
    assert accounts.of(first) is not found


def test_an_account_of_inexact_stamps_is_kept(tmp_path):
    """Fails when a run whose stamps were put in order is measured again for every step."""
    frame = job_frame(JobShape(pp=2, dp=2, steps=4)).astype({"start_ts": float, "duration": float})
    frame = frame[frame["duration"] > 0].sort_values(["rank", "step", "start_ts"])
    # Each activity reaches a little over the begin of the next one.
    whole = frame.groupby(["rank", "step"])["duration"].cumsum()
    frame["start_ts"], frame["duration"] = whole - frame["duration"], frame["duration"] + 40e-6
    write_frame(tmp_path, frame)
    trace, accounts = load_trace(tmp_path), LastAccount()
    found = accounts.of(trace)
    assert found.trace is not trace
    assert accounts.of(trace) is found
