"""What the stages of torch's pipeline tell of the model that they are parts of."""

import pytest
from tests.distributed import split_model_job
from tests.distributed.forked_ranks import run_forked

from meshscope.analyze.account.mfu.utilization import step_tokens
from meshscope.analyze.formulas.flops import known_model
from meshscope.analyze.load.load import load_trace

pytestmark = pytest.mark.distributed


def test_stages_of_torch_tell_the_model_and_its_tokens(tmp_path):
    """MFU would be unknown in every run of torchtitan with a pipeline; an evaluation would count as training."""
    run_forked(tmp_path, split_model_job.main, (tmp_path / "run", 6), ranks=2)
    trace = load_trace(tmp_path / "run")
    model = known_model(trace.run).model
    assert model is not None
    assert (model.num_layers, model.hidden_size, model.seq_len) == (4, 32, 16)
    assert step_tokens(trace)[0] == split_model_job.SEQUENCES * split_model_job.LENGTH
    # Only the first stage is given token ids.
    tokens = trace.frame("step").groupby("rank")["tokens"].max()
    assert tokens.fillna(-1).clip(lower=0).tolist() == [128, 0]
