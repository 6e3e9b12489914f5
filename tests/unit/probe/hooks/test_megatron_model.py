"""Model and batch as Megatron's objects tell them, here plain objects with the same attributes."""

from types import SimpleNamespace

import pytest

from meshscope.probe.hooks.megatron_model import model_facts
from meshscope.probe.schema.model import describe_model, flops_per_token

CONFIG = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "kv_channels": 128,
    "ffn_hidden_size": 14336,
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "num_moe_experts": None,
}
GPT = {
    "vocab_size": 128256,
    "share_embeddings_and_output_weights": False,
    "position_embedding_type": "rope",
    "max_sequence_length": 8192,
}
CALL = {"seq_length": 8192, "micro_batch_size": 1, "num_microbatches": 4}


def gpt(**changes):
    """Return a wrapped model as Megatron's schedules are given it."""
    model = SimpleNamespace(config=SimpleNamespace(**{**CONFIG, **changes}), **GPT)
    return [SimpleNamespace(module=SimpleNamespace(module=model))]


def test_the_config_of_the_model_tells_its_flops():
    """MFU would be unknown in every run of Megatron."""
    facts = model_facts({**CALL, "model": gpt()}, dp=2)
    assert facts["tokens_per_step"] == 8192 * 4 * 2
    assert flops_per_token(describe_model(facts["model"])) == 57_912_852_480


def test_experts_are_those_that_a_token_passes():
    """A model with experts would be taken as dense."""
    changes = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 14336}
    model = describe_model(model_facts({**CALL, "model": gpt(**changes)}, dp=1)["model"])
    assert (model.experts, model.experts_per_token) == (8, 2)


@pytest.mark.parametrize(
    "call",
    [
        {**CALL, "model": [SimpleNamespace()]},
        {**CALL, "model": gpt(num_attention_heads=0)},
        {**CALL, "model": None},
    ],
    ids=["no config", "impossible", "none"],
)
def test_what_is_no_known_model_tells_its_tokens_alone(call):
    """A guess would be a wrong MFU, an error would be counted against the hook."""
    assert model_facts(call, dp=2) == {"tokens_per_step": 65536}


def test_without_lengths_nothing_is_reported():
    """Sequences of unequal lengths are given as none."""
    assert model_facts({"model": gpt(), "num_microbatches": 4}, dp=2) == {}
