"""Descriptions from torchtitan's model arguments, against published sizes."""

from types import SimpleNamespace

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model.counts import total_parameters
from meshscope.probe.schema.model.fields import describe_model

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
    with pytest.raises(ConfigError, match="unknown torchtitan model"):
        describe_model({**LLAMA_8B, "fixed_attn_block_size": 8192}, seq_len=4096)
