"""Predictions against the simulated run with the change made."""

import sys

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, capture_of, programs, uniform

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout

CUBE = ParallelLayout(tp=2, pp=2, dp=2)
DEEP = ParallelLayout(pp=4, dp=2)
EVEN = uniform(10 * MS, 20 * MS)


def slow(factors):
    """Return work in which ranks are slower by a factor."""
    return lambda kind, rank, step, mb: int(EVEN(kind, rank, step, mb) * factors.get(rank, 1.0))


def predicted(trace, *, fixes=(), settings=()):
    """Return the prediction for a capture."""
    return predict(measure(trace), parse_changes(fixes, settings))


def length(job, work):
    """Return the step time of a simulated job."""
    return diagnose(capture(job, work)).step_time_ns


@pytest.mark.parametrize("rank", [0, 3, 5, 6])
def test_a_fixed_rank_gives_the_step_of_the_healthy_job(rank):
    """People would buy a repair that returns something else."""
    job = Job(layout=CUBE, steps=5)
    result = predicted(capture(job, slow({rank: 1.4})), fixes=[f"rank={rank}"])
    assert result.predicted_ns == pytest.approx(length(job, EVEN), rel=1e-6)
    assert result.error_ns == pytest.approx(0, abs=1)


def test_a_healthy_rank_returns_nothing():
    """Any rank would look worth replacing."""
    job = Job(layout=CUBE, steps=5)
    result = predicted(capture(job, slow({5: 1.4})), fixes=["rank=2"])
    assert result.gain_frac == pytest.approx(0, abs=1e-6)


def test_a_fixed_pair_is_as_fast_as_the_faster_of_both():
    """Repairing a host would return nothing where its ranks are the only peers of one another."""
    job = Job(layout=ParallelLayout(dp=2), steps=5)
    trace = capture(job, slow({1: 1.4}))
    both = predicted(trace, fixes=["rank=0", "rank=1"])
    assert both.predicted_ns == pytest.approx(length(job, EVEN), rel=1e-6)
    assert predicted(trace, fixes=["rank=0"]).gain_frac == 0


def test_what_the_replay_misses_is_no_effect_of_a_change(monkeypatch):
    """A repair that changes nothing would be said to cost 9 %, as in a run whose waits were not seen."""
    module = sys.modules["meshscope.analyze.explain.whatif.predict"]
    replayed = module.replay_scenarios

    def longer(*arguments):
        times, waiting = replayed(*arguments)
        return times * 1.09, waiting

    monkeypatch.setattr(module, "replay_scenarios", longer)
    job = Job(layout=CUBE, steps=5)
    healthy = predicted(capture(job, EVEN), fixes=["stragglers"])
    assert healthy.gain_frac == pytest.approx(0, abs=1e-9)
    assert any("takes 9.0 % longer than the run did" in str(one) for one in healthy.assumptions)
    repaired = predicted(capture(job, slow({5: 1.4})), fixes=["rank=5"])
    assert repaired.predicted_ns == pytest.approx(length(job, EVEN), rel=1e-6)


def test_fixes_add_up_as_one_run():
    """Two repairs would be priced apart although one hides the other."""
    job = Job(layout=CUBE, steps=5)
    trace = capture(job, slow({5: 2.0, 4: 1.5}))
    assert predicted(trace, fixes=["rank=4"]).gain_frac == pytest.approx(0, abs=1e-6)
    both = predicted(trace, fixes=["rank=4", "rank=5"])
    assert both.predicted_ns == pytest.approx(length(job, EVEN), rel=1e-6)
    assert predicted(trace, fixes=["stragglers"]).predicted_ns == pytest.approx(both.predicted_ns)


def test_a_faster_link_shortens_its_transfers():
    """A network would be bought for transfers that are hidden, or the wrong axis sped up."""
    job = Job(layout=DEEP, steps=4, wire_ns=8 * MS)
    trace = capture(job, EVEN)
    halved = [
        [
            (*op[:-1], op[-1] // 2) if op[0] == "collective" and op[3] == "dp" else op
            for op in program
        ]
        for program in programs(job, EVEN)
    ]
    truth = diagnose(capture_of(job, halved)).step_time_ns
    result = predicted(trace, settings=["link.dp=2x"])
    assert result.predicted_ns == pytest.approx(truth, rel=1e-6)
    with pytest.raises(ConfigError, match="no axis"):
        predicted(trace, settings=["link.tp=2x"])


def test_faster_compute_shortens_all_work():
    """A faster device would be promised to shorten transfers too."""
    job = Job(layout=CUBE, steps=4)
    truth = length(
        Job(layout=CUBE, steps=4, optimizer_ns=job.optimizer_ns // 2), uniform(5 * MS, 10 * MS)
    )
    result = predicted(capture(job, EVEN), settings=["compute=2x"])
    assert result.predicted_ns == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("microbatches", [2, 8, 16])
@pytest.mark.parametrize("layout", [CUBE, DEEP], ids=["cube", "pp4 dp2"])
def test_more_microbatches_give_the_step_of_that_job(layout, microbatches):
    """The bubble that more microbatches hide would be mispriced."""
    job = Job(layout=layout, steps=4, microbatches=4)
    result = predicted(capture(job, EVEN), settings=[f"microbatches={microbatches}"])
    truth = length(Job(layout=layout, steps=4, microbatches=microbatches), EVEN)
    assert abs(result.predicted_ns - truth) <= max(result.error_ns, 0.01 * truth)
    assert result.microbatches == (4, microbatches)


def test_another_schedule_gives_its_bubble():
    """A schedule would be chosen for a gain that it does not have."""
    job = Job(layout=DEEP, steps=4, microbatches=8)
    trace = capture(job, EVEN)
    same = predicted(trace, settings=["schedule=gpipe"])
    assert same.gain_frac == pytest.approx(0, abs=0.01)
    zero = predicted(trace, settings=["schedule=zb-h1"])
    # Qi et al. 2023, table 2: (p - 1)(t_f + t_b - 2 t_w) instead of (p - 1)(t_f + t_b).
    saved = 3 * 2 * 10 * MS
    assert zero.gain_frac * length(job, EVEN) == pytest.approx(saved, rel=0.05)
    assert any("Half of a backward pass" in str(text) for text in zero.assumptions)


def test_layers_move_work_between_stages():
    """A heavy head would stay where it is whatever the layers do."""

    def heavy_head(kind, rank, step, microbatch):
        extra = 1.5 if DEEP.coordinates(rank)["pp"] == 3 else 1.0
        return int(EVEN(kind, rank, step, microbatch) * extra)

    def moved(kind, rank, step, microbatch):
        scale = [9 / 8, 9 / 8, 9 / 8, 5 / 8 + 0.5][DEEP.coordinates(rank)["pp"]]
        return int(EVEN(kind, rank, step, microbatch) * scale)

    job = Job(layout=DEEP, steps=4, microbatches=8)
    trace = capture(job, heavy_head, num_layers=32)
    result = predicted(trace, settings=["layers=9,9,9,5"])
    assert result.predicted_ns == pytest.approx(length(job, moved), rel=0.01)
    with pytest.raises(ConfigError, match="does not fit"):
        predicted(trace, settings=["layers=9,9,9,9"])


@pytest.mark.parametrize(
    ("fixes", "settings", "said"),
    [
        ([], [], "nothing to change"),
        (["colour=red"], [], "cannot fix"),
        (["rank=99"], [], "not in the capture"),
        (["rank=x"], [], "whole number"),
        (["group=nobody"], [], "no group"),
        (["host=nowhere"], [], "no rank ran on host"),
        ([], ["microbatches=0"], "whole number"),
        ([], ["schedule=magic"], "one of"),
        ([], ["link.dp=fast"], "2x"),
        ([], ["link.xx=2x"], "cannot set"),
        ([], ["layers=1,2"], "does not fit"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(fixes, settings, said):
    """A slip of the pen would be answered with a number."""
    trace = capture(Job(layout=DEEP, steps=3), EVEN)
    with pytest.raises(ConfigError) as caught:
        predicted(trace, fixes=fixes, settings=settings)
    assert said in str(caught.value)


def test_a_rank_without_peers_is_not_guessed():
    """What a rank would take if healthy would be made up."""
    trace = capture(Job(layout=ParallelLayout(pp=4), steps=3), EVEN)
    with pytest.raises(ConfigError, match="no peer"):
        predicted(trace, fixes=["rank=2"])


def test_a_run_without_communication_has_no_prediction():
    """A number would be printed that rests on nothing."""
    with pytest.raises(MeshscopeError, match="no prediction"):
        predicted(capture(Job(layout=ParallelLayout(), steps=3), EVEN), fixes=["jitter"])


def test_a_slow_rank_of_which_records_were_lost_is_reported_by_its_durations():
    """Fails when a rank whose steps are like none of its peers' hides, and its cost is the schedule's."""
    layout = ParallelLayout(pp=2, dp=4)
    whole = capture(Job(layout=layout, microbatches=8, steps=5), slow({5: 1.4}))
    sends = whole.tables["p2p"]
    numbered = sends.to_pandas()
    mine = (numbered["rank"] == 5) & (numbered["direction"] == "send")
    lost = mine & (numbered.groupby(["rank", "step"]).cumcount() == 2 + numbered["step"])
    assert lost.any()
    trace = whole.with_tables({"p2p": sends.filter(pa.array(~lost))})
    reported, known = diagnose(trace), diagnose(whole)
    cause = next(cause for cause in reported.causes if cause.where.get("rank") == 5)
    truth = next(cause for cause in known.causes if cause.where.get("rank") == 5)
    assert cause.removal_gain_frac == pytest.approx(truth.removal_gain_frac, rel=0.25)
    assert predicted(trace, fixes=["rank=5"]).gain_frac == pytest.approx(cause.removal_gain_frac)
    slowdown = reported.metrics["straggler_slowdown"]
    assert slowdown == pytest.approx(1 / (1 - cause.removal_gain_frac), rel=1e-6)
