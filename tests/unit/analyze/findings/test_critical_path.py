"""The critical path of simulated jobs, whose dependencies are known."""

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze import load_trace
from meshscope.analyze.findings.critical_path import critical_path
from meshscope.analyze.findings.diagnosis import diagnosis_of
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.output.json import critical_path_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.straggler_tables import find_stragglers
from meshscope.analyze.output.text import critical_path_document
from meshscope.analyze.output.text.stragglers import stragglers_document
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout

EVEN = uniform(10 * MS, 20 * MS)
CUBE = ParallelLayout(tp=2, pp=2, dp=2)


def path_of(job, work, step=None):
    """Return the path of a job."""
    return critical_path(measure(capture(job, work)), step)


@pytest.mark.parametrize(
    "layout",
    [CUBE, ParallelLayout(pp=4, dp=2), ParallelLayout(dp=4), ParallelLayout(tp=4)],
    ids=["cube", "pp4 dp2", "dp4", "tp4"],
)
@pytest.mark.parametrize("step", [1, 3])
def test_the_pieces_follow_one_another_and_sum_to_the_step(layout, step):
    """Time would be lost or counted twice on the way back through the ranks."""
    job = Job(layout=layout, steps=5)
    path = path_of(
        job, lambda kind, rank, s, m: EVEN(kind, rank, s, m) + (rank * 7 + m) % 3 * MS, step
    )
    pieces = path.pieces
    assert pieces["start_ns"].iloc[0] == path.start_ns
    assert pieces["end_ns"].iloc[-1] == path.end_ns
    assert (pieces["start_ns"].to_numpy()[1:] == pieces["end_ns"].to_numpy()[:-1]).all()
    assert pieces["dur_ns"].sum() == path.end_ns - path.start_ns
    assert path.by("class")["frac"].sum() == pytest.approx(1.0)


def test_a_slow_rank_is_on_the_path_all_the_time():
    """The rank that decides the step would not be where people look for it."""
    job = Job(layout=ParallelLayout(dp=4), steps=4)
    path = path_of(job, lambda kind, rank, s, m: EVEN(kind, rank, s, m) * (2 if rank == 2 else 1))
    by_rank = path.by("rank")
    assert by_rank["rank"].iloc[0] == 2
    work = path.pieces[path.pieces["class"].isin(["forward", "backward"])]
    assert set(work["rank"]) == {2}
    assert work["dur_ns"].sum() == 4 * 60 * MS
    assert sorted(work["microbatch"].unique()) == [0, 1, 2, 3]


def test_a_pipeline_path_goes_through_all_stages():
    """The bubble would look like the work of one stage."""
    job = Job(layout=ParallelLayout(pp=4), microbatches=8, steps=4)
    path = path_of(job, EVEN)
    assert set(path.pieces["stage"]) == {0, 1, 2, 3}
    wire = path.by("class").set_index("class")["dur_ns"]
    # Three transfers down and three up, beside those of the steady part.
    assert wire["exposed_pp_wire"] >= 6 * job.wire_ns
    assert wire["forward"] + wire["backward"] == (8 + 3) * 30 * MS


def test_the_median_step_is_chosen_and_others_can_be():
    """People would look at an outlier, or could not look at it."""
    job = Job(layout=ParallelLayout(dp=2), steps=6)
    slow_step = 3

    def work(kind, rank, step, microbatch):
        return EVEN(kind, rank, step, microbatch) * (3 if step == slow_step else 1)

    assert path_of(job, work).step != slow_step
    assert path_of(job, work, slow_step).step == slow_step
    with pytest.raises(MeshscopeError, match="step 77 is not among"):
        path_of(job, work, 77)


def test_without_communication_there_is_no_path():
    """A chain would be made up where nothing tells who waited for whom."""
    with pytest.raises(MeshscopeError, match="no critical path"):
        path_of(Job(layout=ParallelLayout(), steps=3), EVEN)


@pytest.mark.traces
@pytest.mark.parametrize(
    "name", ["hta/trace_filter", "hta/nccl_parser_config", "amd_hpctraining/split"]
)
def test_pieces_tile_the_steps_of_real_traces(traces_dir, name):
    """Operations that ranks leave early would put time on the path twice."""
    account = measure(load_trace(traces_dir / name))
    for step in account.windows.steps.tolist():
        path = critical_path(account, step)
        pieces = path.pieces
        assert (pieces["start_ns"].to_numpy()[1:] == pieces["end_ns"].to_numpy()[:-1]).all()
        assert pieces["dur_ns"].sum() == path.end_ns - path.start_ns


def _printed(trace):
    """Return what the two commands print of a capture."""
    account = measure(trace)
    path = critical_path_to_json(critical_path(account, 2), ())
    return (
        path,
        to_plain(critical_path_document(path)),
        to_plain(stragglers_document(find_stragglers(diagnosis_of(account)))),
    )


def test_two_lengths_of_one_step_are_explained_where_ranks_begin_it_apart():
    """Fails when `critical-path` and `stragglers` tell one step two lengths without a word."""
    # The last stage ends its passes first, and in one step the rank ends last.
    saving = parse_fault("checkpoint:extra_ms=80,rank=3,first_step=2,last_step=2")
    job = SyntheticJob(layout=ParallelLayout(pp=4), steps=5, faults=(saving,))
    path, text, listed = _printed(generate(job)[0])
    assert path["longest_rank_ns"] != path["step_time_ns"]
    assert f"takes longest takes {path['longest_rank_ns'] / 1e6:.3f} ms" in text
    assert "on its last rank" in text
    assert "of the rank that takes longest" in listed
    even, text, listed = _printed(capture(Job(layout=ParallelLayout(dp=4), steps=5), EVEN))
    assert even["longest_rank_ns"] == even["step_time_ns"]
    assert "takes longest" not in text + listed
