"""A job whose ranks record one window of steps in two, with real processes."""

import json
import os

import pytest
from tests.distributed.recorded_training import recorded_run
from tests.texts import texts

from meshscope.analyze.align.communication.matching import match_collectives, match_p2p
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.sampling import is_recorded
from meshscope.probe.session.sample_order import SAMPLING_FILE
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)

pytestmark = pytest.mark.distributed

STEPS = 110
CONFIG = TrainerConfig(
    layout=ParallelLayout(pp=2, dp=2),
    model=ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16),
    schedule=ScheduleConfig(microbatches=2),
    train=TrainConfig(steps=STEPS, global_batch=4),
)


def follow_orders() -> None:
    """Have a rank follow an order to record less, and never give one itself."""
    os.environ["MESHSCOPE_COST_BUDGET_PPM"] = "1000000"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run with the order and one without, and the directory of the first."""
    out = tmp_path_factory.mktemp("sampled")
    (out / "run").mkdir()
    order = {"one_in": 2, "first_step": 30}
    (out / "run" / SAMPLING_FILE).write_text(json.dumps(order), encoding="utf-8")
    sampled = recorded_run(CONFIG, out, follow_orders)
    whole = recorded_run(CONFIG, tmp_path_factory.mktemp("whole"))
    return sampled, whole, out / "run"


def test_all_ranks_record_the_same_windows(runs):
    """Fails when a rank records steps that its peers leave out: none of them could be analysed."""
    sampled, _, _ = runs
    assert sampled.codes == [0] * 4
    recorded = {step for step in range(STEPS) if step < 30 or is_recorded(step, 2)}
    spans = sampled.tables["span"]
    passes = spans[spans["kind"].astype(str).isin(["forward", "backward"])]
    collectives = sampled.tables["collective"].query("kind != 'barrier'")
    for rows in (passes, collectives, sampled.tables["p2p"]):
        found = {rank: set(own) for rank, own in rows.groupby("rank")["step"]}
        assert found == dict.fromkeys(range(4), recorded)
    assert set(sampled.tables["step"]["step"]) == set(range(STEPS))


def test_every_message_has_both_ends(runs):
    """Fails when ranks number their messages apart after a window that nobody recorded."""
    sampled, whole, path = runs
    trace = load_trace(path)
    assert texts(match_p2p(trace).limits) == ()
    assert texts(match_collectives(trace).limits) == ()
    for name in ("p2p", "collective"):
        by_step = sampled.tables[name].groupby(["rank", "step"]).size()
        expected = whole.tables[name].groupby(["rank", "step"]).size()
        assert len(by_step) > 4 * 60
        assert (by_step == expected.reindex(by_step.index)).all()


def test_a_run_without_room_is_distinguished_from_steps_of_all_ranks(runs):
    """Fails when ranks keep different steps of a large run, or the account of those does not add up."""
    sampled, _, path = runs
    room = sum(len(sampled.tables[name]) for name in ("span", "collective", "p2p")) // 3
    trace = load_trace(path, wanted=Wanted(most_rows=room))
    steps = trace.frame("step")
    held = steps[steps["detail"] == "full"].groupby("rank")["step"].agg(tuple)
    assert held.nunique() == 1
    assert 4 <= len(held[0]) <= STEPS // 4 + 2
    assert texts(match_p2p(trace).limits) == ()
    result = diagnose(trace)
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1.0, abs=1e-9)
    assert any("steps spread over the run" in limit for limit in texts(result.limits))


def test_training_does_not_notice(runs):
    """Fails when taking hooks out and putting them in again changes a bit of a loss."""
    sampled, whole, _ = runs
    assert len(sampled.losses) == STEPS
    assert sampled.losses == whole.losses
