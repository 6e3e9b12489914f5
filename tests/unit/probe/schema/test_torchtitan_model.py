"""Descriptions from torchtitan's model arguments, against published sizes."""

from types import SimpleNamespace

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import flops_per_token
from meshscope.probe.schema.model.counts import total_parameters
from meshscope.probe.schema.model.fields import describe_model
from meshscope.probe.schema.model.torchtitan import fields_of_torchtitan

LLAMA_8B = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "multiple_of": 1024,
    "ffn_dim_multiplier": 1.3,
}
QWEN3_30B = {
    "dim": 2048,
    "n_layers": 48,
    "n_heads": 32,
    "n_kv_heads": 4,
    "vocab_size": 151936,
    "head_dim": 128,
    "hidden_dim": 6144,
    "qk_norm": True,
    "moe_enabled": True,
    "moe_inter_dim": 768,
    "moe_args": SimpleNamespace(num_experts=128, top_k=8, num_shared_experts=0),
}
DEEPSEEK_16B = {
    "dim": 2048,
    "n_layers": 27,
    "n_heads": 16,
    "vocab_size": 102400,
    "inter_dim": 10944,
    "moe_inter_dim": 1408,
    "n_dense_layers": 1,
    "moe_args": SimpleNamespace(num_experts=64, top_k=6, num_shared_experts=2),
    "q_lora_rank": 0,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("arguments", "billions"),
    [(LLAMA_8B, 8.030), (QWEN3_30B, 30.532), (DEEPSEEK_16B, 15.706)],
    ids=["Llama 3 8B", "Qwen3 30B-A3B", "DeepSeek-V2-Lite"],
)
def test_parameters_are_those_that_were_published(arguments, billions):
    """Fails when a size of torchtitan's is read as another: MFU would be wrong by as much."""
    found = describe_model(SimpleNamespace(**arguments), seq_len=4096)
    assert total_parameters(found) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_other_models_are_refused():
    """Fails when layers of another form are counted as if they were Llama's."""
    with pytest.raises(ConfigError, match="of a kind that is not known"):
        describe_model({**LLAMA_8B, "fixed_attn_block_size": 8192}, seq_len=4096)


MISTRAL = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "norm_eps": 1e-5,
    "vocab_size": 32000,
}
DEEPSEEK_V3 = {
    "vocab_size": 129280,
    "dim": 7168,
    "inter_dim": 18432,
    "moe_inter_dim": 2048,
    "n_layers": 61,
    "n_dense_layers": 3,
    "n_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "n_activated_experts": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def test_parameters_beside_the_weights_of_mistral_count():
    """Fails when experts or a window are left out: a Mixtral would count as a Mistral, half of its FLOPs."""
    mixtral = {**MISTRAL, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}
    assert total_parameters(describe_model(mixtral, seq_len=4096)) == 46_702_792_704
    windowed = describe_model({**MISTRAL, "sliding_window": 1024}, seq_len=4096)
    whole = describe_model(MISTRAL, seq_len=4096)
    assert flops_per_token(whole) - flops_per_token(windowed) == 12 * 32 * 4096 * 3072


def test_deepseeks_own_configuration_counts():
    """Fails with a KeyError, or when its experts have names that are not known."""
    found = describe_model(DEEPSEEK_V3, seq_len=4096)
    assert total_parameters(found) / 1e9 == pytest.approx(671.026, rel=1e-5)
    assert (found.experts_per_token, found.dense_layers) == (8, (0, 1, 2))


@pytest.mark.parametrize(
    "other",
    [
        {"vision_encoder": {"hidden_size": 1024}},
        {"sliding_window": [1024, None]},
        {"moe": {"k": 2}},
    ],
    ids=["images", "windows", "experts"],
)
def test_parts_that_are_not_understood_are_refused(other):
    """Fails when an encoder of images, or experts of unknown names, count as nothing."""
    with pytest.raises(ConfigError, match="of a kind that is not known"):
        describe_model({**MISTRAL, **other}, seq_len=4096)


@pytest.mark.parametrize(
    "damaged",
    [
        {"dim": "abc"},
        {"n_layers": 1e400},
        {"n_layers": -3},
        {"n_layers": 10**9},
        {"ffn_dim_multiplier": "much"},
        {"ffn_dim_multiplier": float("inf")},
        {"sliding_window": [4096]},
        {"moe": [1, 2]},
        {"moe": {"num_experts": "eight", "num_experts_per_tok": 2}},
        {"moe": {"num_experts": 8, "num_experts_per_tok": 2}, "route_every_n": -1},
    ],
    ids=str,
)
def test_values_of_another_kind_are_refused(damaged):
    """A `params.json` that was written by hand or cut off would end in a traceback."""
    with pytest.raises(ConfigError, match=r"params\.json"):
        fields_of_torchtitan({**LLAMA_8B, **damaged}, "params.json")
