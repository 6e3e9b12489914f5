"""No finding is an all-clear only where one would have been seen."""

import pytest
from tests.tables import host_row, trace_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.none_found import nothing_found
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.analyze.output.json.stragglers import stragglers_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.straggler_tables import find_stragglers
from meshscope.analyze.output.text import to_text
from meshscope.analyze.output.text.stragglers import stragglers_document
from meshscope.analyze.wording.limits import limit_texts
from meshscope.probe.schema.layout import ParallelLayout

MS = 1_000_000


def two_ranks(*, seen=True, work_ms=99, world=2):
    """Return two ranks that compute and reduce in steps of 100 ms; the ends may be unseen."""
    rows = [host_row(99 * MS, 100 * MS if seen else None, rank=rank) for rank in (0, 1)]
    if not seen:
        rows = [row | {"wait_start_ns": None, "wait_end_ns": None} for row in rows]
    return diagnose(
        trace_of(
            run={"world_size": world},
            step=[{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)],
            span=[
                {"rank": rank, "kind": "forward", "start_ns": 0, "dur_ns": work_ms * MS}
                for rank in (0, 1)
            ],
            collective=rows,
        )
    )


def test_a_job_that_was_seen_whole_gets_its_all_clear():
    """Fails when a healthy job is doubted."""
    found = two_ranks()
    assert str(nothing_found(found)) == "Nothing costs 1.0 % of the step or more"
    assert "no slow rank or stage costs 1 % of the time" in to_plain(
        stragglers_document(find_stragglers(found))
    )


def test_without_seen_ends_nothing_is_cleared():
    """Fails when a job of which no wait was seen is said to have no slow rank, and to wait 0 ms."""
    found = two_ranks(seen=False)
    assert not found.findings
    report, stragglers = to_text(found), to_plain(stragglers_document(find_stragglers(found)))
    assert "Nothing costs" not in report
    assert "What costs time is unknown: End times are missing" in report
    assert "no rank makes" not in stragglers
    assert "Which ranks make the others wait: not known" in stragglers
    assert "Ranks, by" not in report  # a table of nothing but unknowns
    assert found.stragglers[["slowdown", "excess_ns", "wait_ns"]].isna().all(axis=None)
    assert diagnosis_to_json(found)["untold"] == limit_texts(found.unknown_causes)


def test_without_any_communication_no_rank_is_the_busiest():
    """Fails when the first rank is called the busiest of steps of which only the length is known."""
    ranks = (0, 1)
    found = diagnose(
        trace_of(
            run={"world_size": 2, "pp": 2, "tp": 1, "dp": 1},
            layout=ParallelLayout(pp=2),
            step=[{"rank": rank, "dur_ns": 100 * MS} for rank in ranks],
            span=[
                {"rank": rank, "kind": "forward", "start_ns": 0, "dur_ns": 50 * MS}
                for rank in ranks
            ],
        )
    )
    assert texts(found.unknown_causes)
    stragglers = find_stragglers(found)
    unknown = ["slowest_rank", "own_ns", "median_own_ns"]
    assert stragglers.steps[unknown].isna().all(axis=None)
    assert stragglers_to_json(stragglers)["steps"][0]["slowest_rank"] is None
    assert to_plain(stragglers_document(stragglers)).count("0/0") == 0


def test_findings_do_not_hide_that_others_are_not_known():
    """Fails when a reader takes the one thing that was found for all there is."""
    report = to_text(two_ranks(seen=False, world=4))
    assert "missing_data" in report
    assert "Slow ranks, stages and links: unknown, because" in report


@pytest.mark.parametrize(("work_ms", "reported"), [(99, False), (60, True)])
def test_time_that_is_not_attributed_is_no_all_clear(work_ms, reported):
    """Fails when most of the step was spent on nobody knows what, and all is said to be well."""
    said = nothing_found(two_ranks(work_ms=work_ms))
    assert (said.code == "none_found.nothing_known") is reported
    if reported:
        assert said.values["attributed"] == pytest.approx(0.61, abs=5e-4)
        assert said.values["unknown"] == pytest.approx(0.39, abs=5e-4)
