"""The present layers of the stages, and what other ones cost."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.explain.whatif.changes import Change
from meshscope.analyze.explain.whatif.layers import (
    StageRepair,
    inferred_layers,
    moved_costs,
    spread_over_light,
    stage_costs,
)
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, make_simulation, parse_fault
from meshscope.analyze.synthetic.faults import Fault, FaultKind
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

splits = st.lists(st.integers(1, 12), min_size=2, max_size=8)


def reported(cost, total):
    """Return the inferred layers as a list."""
    found = inferred_layers(np.array(cost, float), total)
    return None if found is None else found.tolist()


@pytest.mark.parametrize(
    ("cost", "total", "layers"),
    [
        ([8, 8, 8, 8], 32, [8, 8, 8, 8]),
        ([9, 8, 8, 7], 32, [9, 8, 8, 7]),
        ([8, 8, 8, 11], 32, [8, 8, 8, 8]),
        ([8.4, 8, 8, 11], 32, [8, 8, 8, 8]),
        ([9, 7], 16, [9, 7]),
        ([12, 8, 8, 8], 36, [12, 8, 8, 8]),
        ([6, 5, 5], 16, [6, 5, 5]),
        ([5.05, 6, 6.02, 6, 5], 28, [5, 6, 6, 6, 5]),
        ([8, 11], 16, [8, 8]),
        ([8.1, 7.9, 8.05, 8], 32, [8, 8, 8, 8]),
    ],
)
def test_layers_are_judged_by_what_stages_cost(cost, total, layers):
    """Fails when an uneven split is taken for an even one, or a heavy head for layers."""
    assert reported(cost, total) == layers


@pytest.mark.parametrize("cost", [[9, 8, 8, 7.5], [8, 5.5, 4.7, 8], [10, 8, 8, 8]])
def test_costs_that_fit_no_layers_are_not_guessed(cost):
    """Fails when a split is made up for stages whose costs are no multiples of a layer."""
    assert reported(cost, 32) is None
    change = Change("layers", "9,8,8,7", is_fix=False)
    with pytest.raises(ConfigError, match="how many layers") as caught:
        stage_costs(np.array([cost], float), 4, change, 32)
    assert "layers=8,8,8,8->" in str(caught.value)


@given(splits, st.floats(0.1, 100))
def test_a_judgement_has_the_layers_of_the_model(layers, layer_ns):
    """Fails when layers are lost or made by the judgement, or a stage would have none."""
    found = reported(np.array(layers) * layer_ns, sum(layers))
    if found is not None:
        assert sum(found) == sum(layers)
        assert min(found) > 0


@given(splits, st.floats(0, 20), st.floats(0, 20))
def test_layers_that_stay_change_no_cost(layers, embedding, head):
    """Fails when stating the present split as the wanted one changes the step."""
    cost = np.array([layers, 2 * np.array(layers)], float)
    cost[:, 0] += embedding
    cost[:, -1] += head
    now = np.array(layers, float)
    assert moved_costs(cost, now, now) == pytest.approx(cost)


@given(splits, st.integers(2, 16), st.floats(0, 20))
def test_other_stages_have_the_same_work_together(layers, stages, extra):
    """Fails when work appears or vanishes because the model is cut elsewhere."""
    cost = np.array([layers], float)
    cost[:, len(layers) // 2] += extra
    now = np.array(layers, float)
    then = np.full(stages, now.sum() / stages)
    assert moved_costs(cost, now, then).sum() == pytest.approx(cost.sum())


def test_embedding_and_head_stay_at_the_ends():
    """Fails when layers of a heavy stage are moved together with its head."""
    cost = np.array([[9.0, 8, 8, 12]])
    moved = moved_costs(cost, np.full(4, 8.0), np.array([9.0, 9, 9, 5]))
    assert moved.tolist() == [[10, 9, 9, 9]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("8,8,8->8,8,8,8", "does not fit"),
        ("9,8,8,6->8,8,8,8", "does not fit"),
        ("9,8,8,7->", "is not valid"),
        ("->8,8,8,8", "is not valid"),
        ("8,8,8,0", "does not fit"),
    ],
)
def test_a_stated_split_that_cannot_be_is_refused(value, said):
    """Fails when a slip in the stated layers is answered with a number."""
    with pytest.raises(ConfigError, match=said):
        stage_costs(np.full((3, 4), 8.0), 4, Change("layers", value, is_fix=False), 32)


def test_a_stated_split_needs_as_many_layers_on_both_sides():
    """Fails when layers vanish where the model's own number is not known."""
    with pytest.raises(ConfigError, match="16 layers now and 17 then"):
        stage_costs(np.full((3, 2), 8.0), 2, Change("layers", "8,8->8,9", is_fix=False), None)


MS = 1_000_000
DEEP, CHUNKED = ParallelLayout(pp=4, dp=2), ParallelLayout(pp=4, dp=2, vpp=2)
EVEN, WANTED = (8, 8, 8, 8), (9, 8, 8, 7)
SLOW = "slow_rank:rank=5,factor=1.4"
HEAD = Costs(head_ns=3 * MS, dp_ns=20 * MS)
excesses = st.lists(st.floats(0, 20), min_size=2, max_size=8)


def job(*faults, layout=DEEP, layers=EVEN, **others):
    """Return a job with a little jitter and the given layers."""
    settings = {"microbatches": 8, "steps": 6, "jitter_cv": 0.02, "wire_cv": 0.02} | others
    faults = tuple(map(parse_fault, faults))
    return SyntheticJob(layout=layout, layers=layers, faults=faults, **settings)


def with_beyond(own, layers, beyond_ms, **changes):
    """Return the healthy job whose stages take so much beyond other layers."""
    layer_ms = own.costs.layer_forward_ns / MS
    heavier = tuple(
        Fault(kind=FaultKind.SLOW_STAGE, stage=stage, factor=1 + beyond / (count * layer_ms))
        for stage, (count, beyond) in enumerate(zip(layers, beyond_ms, strict=True))
    )
    costs = replace(changes.pop("costs", own.costs), head_ns=0, embedding_ns=0)
    return replace(own, layers=layers, faults=heavier, costs=costs, **changes)


@cache
def account_of(own):
    """Return the measured capture of a job."""
    return measure(generate(own)[0])


def predicted(own, *settings, fixes):
    """Return what is predicted from the capture of a job."""
    return predict(account_of(own), parse_changes(list(fixes), list(settings)))


def truth_ns(own):
    """Return the simulated step time of a job."""
    return float(list(make_simulation(own).steps())[-1].end.mean() / own.steps)


def assert_predicted(own, then, *settings, fixes):
    """Check a prediction against the job that really runs so: within its error, and 1 %."""
    result, truth = predicted(own, *settings, fixes=fixes), truth_ns(then)
    assert result.predicted_ns == pytest.approx(truth, rel=0.01)
    assert abs(result.predicted_ns - truth) <= result.error_ns
    return result


@pytest.mark.parametrize("dp", [2, 4])
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ((), {}),
        (("microbatches=64",), {"microbatches": 64}),
        (
            ("microbatches=64", "schedule=zb-h1", "link.dp=2x"),
            {
                "microbatches": 64,
                "schedule": ScheduleKind.ZB_H1,
                "costs": replace(HEAD, dp_ns=HEAD.dp_ns // 2),
            },
        ),
    ],
    ids=["layers", "more microbatches", "everything"],
)
def test_a_rank_a_stage_and_the_layers_are_predicted_together(dp, settings, changes):
    """Fails when the head of the repaired stage stays with it, vanishes, or moves as if it were layers."""
    own = job(SLOW, layout=ParallelLayout(pp=4, dp=dp), costs=HEAD)
    then = with_beyond(own, WANTED, [0.75] * 4, **changes)
    fixes = ("rank=5", "stage=3")
    assert_predicted(own, then, "layers=9,8,8,7", *settings, fixes=fixes)


@pytest.mark.parametrize("layers", ["8,8,8,8", "8,8,8,8->8,8,8,8"])
def test_layers_that_stay_leave_the_repair_as_it_is_alone(layers):
    """Fails when naming the present layers changes what the repair of a stage returns."""
    own = job(SLOW, costs=HEAD)
    alone = predicted(own, fixes=("rank=5", "stage=3"))
    both = predicted(own, f"layers={layers}", fixes=("rank=5", "stage=3"))
    assert both.predicted_ns == pytest.approx(alone.predicted_ns, rel=0.005)


def test_a_stage_that_is_heavy_by_its_layers_has_nothing_to_repair():
    """Fails when its layers are taken away by the repair and once more by the new split."""
    own = job(layers=(6, 6, 6, 14))
    setting = "layers=6,6,6,14->9,8,8,7"
    both = assert_predicted(own, replace(own, layers=WANTED), setting, fixes=["stage=3"])
    without = predict(account_of(own), parse_changes([], [setting]))
    assert both.predicted_ns == pytest.approx(without.predicted_ns, rel=0.002)


@pytest.mark.parametrize(
    ("costs", "now", "fix", "then", "beyond_ms"),
    [
        (Costs(head_ns=6 * MS), (9, 9, 9, 5), "stage=3", EVEN, [1.5] * 4),
        (Costs(head_ns=3 * MS, embedding_ns=2 * MS), EVEN, "stage=3", WANTED, [2, 7 / 8, 7 / 8, 1.25]),
        (Costs(head_ns=3 * MS, embedding_ns=2 * MS), EVEN, "stage_imbalance", WANTED, [1.25] * 4),
    ],
    ids=["uneven now", "one of two heavy stages", "all"],
)  # fmt: skip
def test_only_what_is_beyond_the_layers_of_the_named_stages_is_spread(
    costs, now, fix, then, beyond_ms
):
    """Fails when the layers of an uneven job, or the excess of a stage that is not named, are spread."""
    own = job(layers=now, costs=costs)
    setting = f"layers={','.join(map(str, now))}->{','.join(map(str, then))}"
    assert_predicted(own, with_beyond(own, then, beyond_ms), setting, fixes=[fix])


def test_a_repaired_stage_is_no_measure_of_the_present_layers():
    """Fails when a slow stage in the middle hides that all have as many layers."""
    own = job("slow_stage:stage=2,factor=1.5")
    result = assert_predicted(
        own, with_beyond(own, WANTED, [1.0] * 4), "layers=9,8,8,7", fixes=["stage=2"]
    )
    assert any("8,8,8,8 layers now" in str(text) for text in result.assumptions)
    with pytest.raises(ConfigError, match="how many layers"):
        predicted(own, "layers=9,8,8,7", fixes=["stage=1"])


@pytest.mark.parametrize("start", [DEEP, CHUNKED], ids=["one chunk", "two chunks"])
def test_what_is_repaired_goes_to_the_chunks_that_there_are_then(start):
    """Fails when the head of a rank with several chunks is not found, or goes to four stages of eight."""
    kinds = {1: ScheduleKind.ONE_F_ONE_B, 2: ScheduleKind.INTERLEAVED}
    layers = (5, 4, 4, 4, 4, 4, 4, 3)
    own = job(
        layout=start,
        layers=(8 // start.vpp,) * 4 * start.vpp,
        schedule=kinds[start.vpp],
        costs=Costs(head_ns=3 * MS),
    )
    then = with_beyond(own, layers, [3 / 8] * 8, layout=CHUNKED, schedule=ScheduleKind.INTERLEAVED)
    settings = ["schedule=interleaved-1f1b", "chunks=2", f"layers={','.join(map(str, layers))}"]
    assert_predicted(own, then, *settings, fixes=["stage=3"])


def test_the_error_holds_the_truth_whatever_the_seed():
    """Fails when fewer than nine in ten of what is called a 95 % interval hold the true step."""
    held = []
    for seed in range(10):
        own = job(SLOW, costs=HEAD, seed=seed, jitter_cv=(0.01, 0.05)[seed % 2])
        result = predicted(own, "layers=9,8,8,7", fixes=["rank=5", "stage=3"])
        truth = truth_ns(with_beyond(own, WANTED, [0.75] * 4))
        held.append(abs(result.predicted_ns - truth) <= result.error_ns)
    assert np.mean(held) >= 0.9


def test_a_repair_that_finds_nothing_beyond_the_layers_says_so():
    """Fails when a healthy stage is said to be repaired, or the excess of another moves with it."""
    own = job("slow_stage:stage=2,factor=1.5", jitter_cv=0.0)
    result = predicted(own, "layers=8,8,8,8->9,8,8,7", fixes=["stage=1"])
    assert any("No loss by stage=1 was found beyond" in str(text) for text in result.assumptions)
    assert not any("Repaired after" in str(text) for text in result.assumptions)
    then = replace(own, layers=WANTED)
    # The excess of the other stage is 4 ms whatever its layers are, and these are the same.
    assert result.predicted_ns == pytest.approx(truth_ns(then), rel=0.005)


@pytest.mark.parametrize(
    ("layout", "costs", "fix", "layers", "said"),
    [
        (ParallelLayout(dp=4), Costs(), "stage=0", "8", "one pipeline stage"),
        (DEEP, Costs(), "stage=4", "9,8,8,7", "no stage '4'"),
        (DEEP, Costs(embedding_ns=3 * MS), "stage_imbalance", "9,8,8,7", "how many layers"),
        (ParallelLayout(pp=2, dp=2), Costs(embedding_ns=3 * MS), "stage=0", "9,7", "how many layers"),
        (DEEP, Costs(), "stage=3", "8,8,8,8->9,8,8,8", "does not fit"),
    ],
    ids=["no pipeline", "no such stage", "all are to be repaired", "one other stage", "no such split"],
)  # fmt: skip
def test_what_no_record_tells_is_refused_with_its_remedy(layout, costs, fix, layers, said):
    """Fails when the present layers are made up for a repair that needs them."""
    kind = ScheduleKind.ONE_F_ONE_B if layout.pp > 1 else ScheduleKind.NONE
    own = job(layout=layout, layers=(8,) * layout.pp, schedule=kind, costs=costs)
    with pytest.raises(ConfigError, match=said) as caught:
        predicted(own, f"layers={layers}", fixes=[fix])
    assert caught.value.where
    assert caught.value.remedy


@given(excesses, st.integers(0, 7), st.floats(0.1, 5))
@example([5.594269368306963e-43] * 3, 0, 1.0)
def test_no_work_vanishes_and_no_stage_gets_less_than_nothing(beyond, stage, other):
    """Fails when a repair is worth more than moving work can be."""
    found = np.array([beyond, other * np.array(beyond)])
    own = np.where(np.arange(len(beyond)) == stage % len(beyond), found, 0.0)
    after = spread_over_light(found, own)
    assert after.sum(axis=1) == pytest.approx(found.sum(axis=1))
    assert after.min() >= -1e-9
    assert after.sum(axis=0).max() <= found.sum(axis=0).max() + 1e-9


def test_stages_that_are_repaired_one_by_one_are_repaired_together():
    """Fails when two repairs fill the same light stage twice."""
    holder = np.arange(4)
    each = StageRepair(tuple(Change("stage", str(n), is_fix=True) for n in range(4)), holder)
    whole = StageRepair((Change("stage_imbalance", "", is_fix=True),), holder)
    cost, now, then = (np.array(one, float) for one in ([[10, 8, 8, 12]], EVEN, WANTED))
    moved = [moved_costs(cost, now, then, repair) for repair in (each, whole)]
    assert moved[0].tolist() == moved[1].tolist() == [[10.5, 9.5, 9.5, 8.5]]


def test_the_order_of_repair_and_layers_is_reported():
    """Fails when readers cannot tell whether the stage was repaired before its layers moved."""
    repair = StageRepair((Change("stage", "3", is_fix=True),), np.arange(4))
    setting = Change("layers", "8,8,8,8->9,8,8,7", is_fix=False)
    costs, said = stage_costs(np.array([[8.0, 8, 8, 12]]), 4, setting, 32, repair)
    assert costs.tolist() == [[10, 9, 9, 8]]
    (order,) = [str(text) for text in said if "repaired last" in str(text)]
    repaired, moved = order.index("stage=3 (25.0 % of its passes)"), order.index("Then layers move")
    assert repaired < order.index("after all other repairs") < moved
