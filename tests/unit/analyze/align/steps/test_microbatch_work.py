"""What is known of the work of microbatches, by rank."""

import numpy as np
import pandas as pd
import pytest
from tests.tables import trace_of

from meshscope.analyze.align.steps.microbatch_work import known_work
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=2)
"""Ranks 0 and 1 are stage 0 of the two replicas, 2 and 3 stage 1."""


def reported(rank, tokens, microbatch=0, step=0):
    """Return a row of the table of microbatches."""
    row = {"rank": rank, "step": step, "microbatch": microbatch, "tokens": tokens}
    return {**row, "sum_sq": tokens**2}


def tokens_of(rows, passes, layout=LAYOUT):
    """Return the tokens of passes (rank, step, microbatch), None where none are known at all."""
    trace = trace_of(microbatch=rows, layout=layout, ranks=(0, 1, 2, 3))
    work = known_work(trace, pd.DataFrame(passes, columns=["rank", "step", "microbatch"]))
    return None if work is None else work[:, 0].tolist()


def test_one_rank_of_a_replica_tells_the_work_of_all_its_stages():
    """Fails when only the stage that reads the data knows how much it is."""
    rows = [reported(0, 10), reported(1, 20)]
    passes = [(3, 0, 0), (2, 0, 0), (1, 0, 0), (0, 0, 0)]
    assert tokens_of(rows, passes) == [20, 10, 20, 10]


def test_a_rank_believes_itself_first():
    """Fails when another rank's word counts more than its own."""
    assert tokens_of([reported(0, 10), reported(2, 11)], [(2, 0, 0), (0, 0, 0)]) == [11, 10]


def test_what_was_said_last_of_a_microbatch_counts():
    """Fails when a microbatch that was reported twice has two rows of every pass."""
    assert tokens_of([reported(0, 10), reported(0, 12)], [(0, 0, 0)]) == [12]


def test_work_of_another_step_or_microbatch_is_unknown():
    """Fails when a microbatch is given the work of another one."""
    found = tokens_of([reported(0, 10, microbatch=1, step=2)], [(0, 2, 1), (0, 2, 0), (0, 1, 1)])
    assert found[0] == 10
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    "rows", [[], [reported(0, 10)]], ids=["nothing told", "of another replica"]
)
def test_nothing_known_is_said(rows):
    """Fails when unknown work looks like a column of numbers."""
    assert tokens_of(rows, [(3, 0, 0)]) is None


def test_without_a_mesh_ranks_speak_for_themselves():
    """Fails when ranks whose replicas are not known share their work."""
    found = tokens_of([reported(0, 10)], [(0, 0, 0), (2, 0, 0)], layout=None)
    assert found[0] == 10
    assert np.isnan(found[1])
