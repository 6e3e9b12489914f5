"""Ranks that are summarised together show what each shows alone, whatever became of the others."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests import deep_run

from meshscope.analyze.account.ledger.build import build_ledger, unsplit_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.scale import independent_ranks
from meshscope.analyze.scale.independent_ranks import taken_together
from meshscope.analyze.scale.summary import summarise
from meshscope.analyze.synthetic import SyntheticJob
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.analyze.tables.classes import WAIT_CLASSES, WIRE_CLASSES
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


@pytest.fixture(scope="module")
def trace():
    """Return a capture of 8 ranks and 8 steps."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=2),
        microbatches=4,
        steps=8,
        jitter_cv=0.05,
    )
    return record(make_simulation(job))


def with_odd_ranks(trace):
    """Return a capture of which ranks 1 to 7 are each odd in a way of its own, but for 5."""
    frame = trace.frame("step").astype({"detail": object})
    steps = {rank: own.copy() for rank, own in frame.groupby("rank")}
    steps[1] = steps[1].iloc[:-2]
    steps[2] = steps[2].iloc[[0, 1, 2, 2, *range(3, 8)]]
    steps[3]["step"] = steps[3]["step"].to_numpy()[[0, 1, 5, 3, 4, 2, 6, 7]]
    steps[4].loc[steps[4].index[2:5], "detail"] = "steps"
    steps[5]["dur_ns"] += 500_000
    del steps[6]
    table = pa.Table.from_pandas(pd.concat(steps.values()), preserve_index=False)
    changes = {"step": TABLES["step"].conform(table)}
    for name in ("collective", "p2p"):
        rows = trace.tables[name]
        is_quiet = (rows["rank"].to_numpy() == 7) & (rows["step"].to_numpy() % 3 != 0)
        changes[name] = rows.filter(pa.array(~is_quiet))
    return trace.with_tables(changes)


@pytest.mark.parametrize("origin", ["synthetic", "meshscope"])
@pytest.mark.parametrize("rows_at_once", [1, 1000, 1_000_000])
def test_a_rank_shows_beside_others_what_it_shows_alone(trace, origin, rows_at_once, monkeypatch):
    """A rank would look slow or fast by who is read beside it, so by the number of workers."""
    monkeypatch.setattr(independent_ranks, "ROWS_AT_ONCE", rows_at_once)
    odd = replace(with_odd_ranks(trace), origin=origin)
    one_by_one = [summarise(odd, [rank]) for rank in odd.ranks]
    assert summarise(odd, odd.ranks).equals(pa.concat_tables(one_by_one))
    assert not one_by_one[6].num_rows


def test_ranks_that_are_alike_are_taken_in_one_sweep(trace):
    """The speed of summaries would be lost without a wrong figure anywhere."""
    assert [part.ranks for part in taken_together(trace, trace.ranks)] == [trace.ranks]
    parts = [part.ranks for part in taken_together(with_odd_ranks(trace), trace.ranks)]
    assert sorted(rank for part in parts for rank in part) == [0, 1, 2, 3, 4, 5, 7]
    assert (0, 5) in parts


def test_kernels_of_some_steps_only_stay_with_their_rank(tmp_path):
    """What one rank was traced in would decide what counts as computed on another."""
    run = deep_run.make_run(tmp_path)
    for rank, steps in ((0, [5, 6]), (1, [6])):
        deep_run.add_trace(run, rank, steps)
    trace = load_trace(run)
    one_by_one = [summarise(trace, [rank]) for rank in trace.ranks]
    together = summarise(trace, trace.ranks)
    assert together.equals(pa.concat_tables(one_by_one))
    assert (together["compute_s"].to_numpy() > 0).any()


def test_a_ledger_without_partners_has_the_same_classes(trace):
    """Summaries and the account would tell two figures of exposed communication."""
    windows = step_windows(trace)
    split = build_ledger(trace, windows, communication_events(trace, windows)).by_step
    whole = unsplit_ledger(trace, windows).by_step
    assert not whole[list(WAIT_CLASSES)].to_numpy().any()
    for wire, wait in zip(WIRE_CLASSES, WAIT_CLASSES, strict=True):
        np.testing.assert_array_equal(whole[wire], split[wire] + split[wait])
    rest = [name for name in split if name not in (*WIRE_CLASSES, *WAIT_CLASSES)]
    pd.testing.assert_frame_equal(whole[rest], split[rest])
