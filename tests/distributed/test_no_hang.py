"""Long runs under the probe end, and compute the same bits as without it.

Hooks that enter the backend while they hold the interpreter lock pass every
short test and hang in the first dozens of steps of a real run.
"""

import pytest
from tests.distributed import training_job
from tests.distributed.forked_ranks import run_forked

from meshscope.probe.reader.run import read_run

pytestmark = pytest.mark.distributed

COMPARED_STEPS = 60


@pytest.mark.sampled(keep=("fsdp2-200-per_step1",))
@pytest.mark.parametrize(
    ("kind", "steps", "per_step"),
    [("ddp", 1000, {"all_reduce"}), ("fsdp2", 200, {"all_gather", "reduce_scatter"})],
)
def test_a_long_run_ends_and_computes_the_same(run_ranks, tmp_path, kind, steps, per_step):
    """Fails when the probe deadlocks training, loses steps, or changes one bit of the loss."""
    watched = run_ranks("training_job.py", kind, steps, tmp_path / "run", timeout_s=240)
    alone = run_forked(tmp_path, training_job.main, (kind, COMPARED_STEPS), ranks=2)
    for with_probe, without in zip(watched, alone, strict=True):
        losses = [line for line in with_probe.splitlines() if "0x" in line]
        assert len(losses) == steps
        assert losses[:COMPARED_STEPS] == [line for line in without.splitlines() if "0x" in line]

    capture = read_run(tmp_path / "run")
    assert capture.ranks == (0, 1)
    step = capture.tables["step"].to_pandas()
    assert (step.groupby("rank")["step"].nunique() == steps).all()
    collective = capture.tables["collective"].to_pandas()
    steady = collective[collective["step"].between(2, steps - 1)]
    assert set(steady["kind"]) == per_step
    per_rank_and_step = steady.groupby(["rank", "step"], observed=True).size()
    assert per_rank_and_step.nunique() == 1
    assert per_rank_and_step.iloc[0] > 1
    errors = [name for m in capture.rank_manifests.values() for name in m["counters"]]
    assert not [name for name in errors if name.endswith("_errors")]
