"""Faults of how the work is shared out: a popular expert, and too few microbatches."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.distributed.recorded_training import RecordedRun, recorded_run

from meshscope.reference_trainer.config.presets import load_config

pytestmark = pytest.mark.distributed

MODEL = """
[model]
layers = 2
hidden = 32
ffn = 64
heads = 4
vocab = 64
seq_len = 16
[train]
steps = 3
global_batch = 8
"""
HOT_STEP, HOT_RANK = 1, 1
PACE_NS = 10_000_000


def record(out: Path, *overrides: str, faults: tuple[str, ...] = ()) -> RecordedRun:
    """Train two recorded ranks."""
    out.mkdir()
    run = recorded_run(load_config(MODEL, overrides=overrides, faults=faults), out)
    assert run.codes == [0, 0]
    return run


def bytes_to_experts(run: RecordedRun, step: int) -> pd.Series:
    """Return the bytes that each rank sends back to where tokens came from, by rank."""
    rows = run.tables["collective"]
    rows = rows[(rows["axis"].astype(str) == "ep") & (rows["step"] == step)]
    # Counts, tokens out, results back, and the gradients of both: the third, and every fourth on.
    first = rows.sort_values("seq").groupby("rank").nth(2)
    return first.set_index("rank")["size_bytes"]


def test_a_hot_expert_moves_the_tokens_to_its_rank(tmp_path: Path) -> None:
    """Fails if the fault leaves no trace in what ranks send, or one outside its step and rank."""
    settings = ("layout.dp=2", "layout.ep=2", "moe.experts=2", "moe.experts_per_token=1")
    fault = f"hot_expert:expert={HOT_RANK},bias=50,start={HOT_STEP},stop={HOT_STEP + 1},seed=1"
    hot = record(tmp_path / "hot", *settings, faults=(fault,))
    clean = record(tmp_path / "clean", *settings)
    assert set(zip(hot.faults["step"], hot.faults["rank"], strict=True)) == {(1, 0), (1, 1)}
    assert clean.faults.empty
    everything = bytes_to_experts(clean, 0).sum()
    assert bytes_to_experts(hot, HOT_STEP).to_dict() == {0: 0, HOT_RANK: everything}
    for run, step in ((hot, 0), (clean, HOT_STEP)):
        shares = bytes_to_experts(run, step) / everything
        assert shares.sum() == 1
        assert shares.min() > 0.1
    # It changes what is learnt, from the step on in which it is.
    assert hot.losses[:HOT_STEP] == clean.losses[:HOT_STEP]
    assert hot.losses[HOT_STEP] != clean.losses[HOT_STEP]


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_step_takes_as_many_turns_as_microbatches_and_the_bubble(
    microbatches: int, tmp_path: Path
) -> None:
    """Fails if a step of m microbatches is shorter than m + p - 1 turns: no bubble to be found."""
    run = record(
        tmp_path / "run",
        *("layout.pp=2", f"schedule.microbatches={microbatches}", "pace.layer_ms=10"),
    )
    spans = run.tables["span"]
    passes = spans[spans["kind"].astype(str).isin(["forward", "backward"]) & (spans["step"] == 1)]
    assert set(passes["microbatch"]) == set(range(microbatches))
    # One block a stage: a turn is a forward and a backward of twice its length.
    turn_ns, ranks = 3 * PACE_NS, 2
    begin, end = passes["start_ns"], passes["start_ns"] + passes["dur_ns"]
    assert end.max() - begin.min() >= (microbatches + ranks - 1) * turn_ns
    # The first stage cannot begin its backwards before the last one had its first turn.
    first = passes["rank"] == 0
    is_backward = passes["kind"].astype(str) == "backward"
    forward_end = end[first & ~is_backward & (passes["microbatch"] == 0)].max()
    assert begin[first & is_backward].min() - forward_end >= turn_ns
