"""How sure a finding about a slow rank is."""

import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze.explain.slow_ranks.suspicion import detect_in
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.stragglers import UNSHOWN, UNSURE, straggler_ranks
from meshscope.probe.schema.layout import ParallelLayout


def slow_ranks(slow_ms, longer_ms=lambda _step: 0):
    """Return findings and causes of the slow ranks of four replicas, each by rank.

    Passes take 20 ms, what ``slow_ms`` says of a rank and step, and up to 0.2 ms by chance.
    """

    def work(kind, rank, step, microbatch):
        chance = MS // 20 * ((7 * rank + 3 * step) % 5)
        return int((20 + slow_ms(rank, step) + longer_ms(step)) * MS) + chance

    result = diagnose(capture(Job(layout=ParallelLayout(dp=4), steps=21), work))
    found = {one.where["rank"]: one for one in result.findings if one.kind == "straggler_rank"}
    return found, {one.where["rank"]: one for one in result.causes if "rank" in one.where}


def test_a_slow_rank_that_another_one_hides_is_as_certain_as_that_one():
    """Fails when a rank that is slow for sure is doubted because its repair alone returns nothing."""
    found, causes = slow_ranks(lambda rank, _step: {1: 20, 2: 10}.get(rank, 0))
    assert causes[2].hidden_by.where["rank"] == 1
    assert causes[2].removal_gain_interval[0] <= 0
    assert found[2].confidence == pytest.approx(found[1].confidence)
    assert found[2].remedy != UNSURE


def test_a_rank_whose_repair_may_return_nothing_is_doubted():
    """Fails when someone swaps hardware although the steps in which it is slow are no longer than the others."""
    found, causes = slow_ranks(
        lambda rank, step: 10 * (rank == 1 and step % 8 < 4), lambda step: 10 * (step % 8 >= 4)
    )
    assert causes[1].hidden_by is None
    assert causes[1].removal_gain_interval[0] <= 0
    assert found[1].confidence <= UNSHOWN
    assert found[1].remedy == UNSURE


@pytest.mark.parametrize(("from_step", "is_named"), [(8, True), (36, False)])
def test_without_a_replay_a_rank_that_loses_less_than_a_finding_is_worth_is_not_named(
    from_step, is_named
):
    """Fails when a change that costs less than 1 % of the step comes before all that costs more."""

    def work(kind, rank, step, microbatch):
        slow = MS * (rank == 1 and step >= from_step)
        return 20 * MS + MS // 20 * ((7 * rank + 3 * step) % 5) + slow

    trace = capture(Job(layout=ParallelLayout(dp=4), steps=41), work)
    alone = trace.with_tables({"collective": trace.tables["collective"].slice(0, 0)})
    account = measure(alone)
    assert account.attribution is None
    verdicts = detect_in(alone, account.windows, account.ledger).suspects
    assert [verdict.rank for verdict in verdicts] == [1]
    assert [one.where["rank"] for one in straggler_ranks(account)] == [1] * is_named
