"""Ranks that take unequal numbers of steps between communication are compared by rounds."""

from dataclasses import replace

import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.steps.rounds import with_rounds
from meshscope.analyze.align.steps.windows import step_windows

ROUND_NS = 1000


def averaging_job(steps_of_rank=(2, 4), rounds=5, seq_of_second=None):
    """Return a job whose ranks train alone, each some steps a round, and then average their models.

    Args:
        steps_of_rank: Steps of each rank in a round, of 100 ns each.
        rounds: How many there are; after the last one nobody ends another step.
        seq_of_second: Positions of the averages of the second rank; as the first rank's if None.
    """
    steps, spans, averages, reported = [], [], [], []
    for rank, each in enumerate(steps_of_rank):
        for at in range(rounds * each):
            turn, place = divmod(at, each)
            start_ns = ROUND_NS * turn + 100 * place
            last = place == each - 1
            end_ns = ROUND_NS * (turn + 1) if last else start_ns + 100
            row = {"rank": rank, "step": at, "start_ns": start_ns}
            steps.append({**row, "dur_ns": end_ns - start_ns, "tokens": 8})
            spans.append({**row, "dur_ns": 90, "kind": "forward", "microbatch": 0, "stage": -1})
            reported.append({"rank": rank, "step": at, "microbatch": 0, "tokens": at, "sum_sq": at})
            if last:
                seq = seq_of_second[turn] if rank and seq_of_second else turn
                averages.append({"rank": rank, "step": at, "group_id": "all", "seq": seq,
                                 "start_ns": start_ns + 90, "end_ns": end_ns})  # fmt: skip
    ranks = list(range(len(steps_of_rank)))
    group = [{"group_id": "all", "ranks": ranks}]
    tables = {"step": steps, "span": spans, "collective": averages, "microbatch": reported}
    tables["group"] = group
    trace = trace_of(origin="meshscope", ranks=tuple(ranks), **tables)
    return replace(trace, clocks=dict.fromkeys(ranks, "one"))


def test_rounds_are_the_steps_of_ranks_that_train_alone_in_between():
    """Fails when the second step of one rank is compared with that of another round."""
    found = with_rounds(averaging_job())
    frame = found.frame("step")
    assert frame["step"].tolist() == [0, 1, 2, 3, 4] * 2
    assert set(frame["dur_ns"]) == {ROUND_NS}
    assert frame["tokens"].tolist() == [16] * 5 + [32] * 5
    assert found.frame("collective")["step"].tolist() == [0, 1, 2, 3, 4] * 2
    spans = found.frame("span")
    assert spans.loc[spans["rank"] == 1, "microbatch"].tolist() == [0, 1, 2, 3] * 5
    reported = found.frame("microbatch")
    for rank, each in ((0, 2), (1, 4)):
        own = reported[reported["rank"] == rank]
        assert own["microbatch"].tolist() == list(range(each)) * 5
        assert own["tokens"].tolist() == list(range(each * 5))
        assert own["step"].tolist() == [turn for turn in range(5) for _ in range(each)]
    assert step_windows(found).steps.tolist() == [1, 2, 3, 4]
    assert any("(2 to 4)" in limit for limit in texts(found.limits))


@pytest.mark.parametrize(
    "trace",
    [averaging_job((3, 3)), averaging_job(rounds=2), averaging_job(seq_of_second=[9, 8, 7, 6, 5])],
    ids=["equal steps", "too few", "nothing in common"],
)
def test_what_has_no_rounds_of_its_own_is_left_as_it_is(trace):
    """Fails when steps are merged that are the same on all ranks, or that nothing ties."""
    assert with_rounds(trace) is trace
