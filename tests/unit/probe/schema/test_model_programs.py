"""Configs of other programs: whose names they use decides what they leave unsaid."""

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import describe_model
from meshscope.probe.schema.model.counts import total_parameters
from meshscope.probe.schema.model.megatron import fields_of_megatron

SIZES = {
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 2, "intermediate_size": 512, "tie_word_embeddings": False,
}  # fmt: skip
NEOX = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "padded_vocab_size": 1024,
    "seq_length": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("named", "family"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "llama"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "qwen2"),
        ({"architectures": ["GPTNeoXForCausalLM"]}, "gpt_neox"),
        ({"is_llama_config": True, "bos_token_id": 1}, "llama"),
        ({"is_qwen2_config": True, "is_llama_config": False}, "qwen2"),
    ],
)
def test_a_config_without_a_type_is_of_the_family_that_it_names_otherwise(named, family):
    """MFU of nanotron, or of a config whose type was left out, would be unknown or that of Megatron's defaults."""
    typed = describe_model({**SIZES, "model_type": family}, seq_len=128)
    assert describe_model({**SIZES, **named}, seq_len=128) == typed


@pytest.mark.parametrize("more", [{}, {"num_layers": 4}])
def test_names_of_hugging_face_are_no_arguments_of_megatron(more):
    """A gated MLP would count as two matrices of 4 x hidden, with 0.84 x the FLOPs."""
    with pytest.raises(ConfigError, match="unknown family"):
        describe_model({**SIZES, **more}, seq_len=128)


@pytest.mark.parametrize(
    ("source", "program"),
    [
        ({**NEOX, "pos_emb": "rotary"}, "GPT-NeoX"),
        ({**NEOX, "no-weight-tying": True}, "GPT-NeoX"),
        ({**NEOX, "rms_norm_eps": 1e-5}, "Hugging Face"),
    ],
)
def test_names_of_other_programs_among_those_of_megatron_are_refused(source, program):
    """Their defaults would be taken for Megatron's: an MLP, heads of keys and a head that are not so."""
    with pytest.raises(ConfigError, match=f"is a name of {program}"):
        fields_of_megatron(source, "model")


BRIDGE = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 2,
    "ffn_hidden_size": 512, "seq_length": 128, "vocab_size": 1024, "gated_linear_unit": True,
    "activation_func": "silu", "share_embeddings_and_output_weights": False,
}  # fmt: skip


@pytest.mark.parametrize("name", ["gated_linear_unit", "num_query_groups", "ffn_hidden_size"])
def test_a_part_of_a_configuration_object_is_refused_by_what_it_lacks(name):
    """MFU would be 0.8 to 1.1 times its value: what is left out is no flag that was not given."""
    assert describe_model(BRIDGE).gated
    with pytest.raises(ConfigError, match=name):
        describe_model({ours: value for ours, value in BRIDGE.items() if ours != name})


_LITGPT = {
    "n_layer": 32, "n_head": 32, "n_query_groups": 8, "n_embd": 4096, "head_size": 128, "bias": False,
    "norm_class_name": "RMSNorm", "intermediate_size": 14336, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "parameters"),
    [
        ({"padded_vocab_size": 128256, "mlp_class_name": "LLaMAMLP"}, 8_030_261_248),
        (
            {"padded_vocab_size": 32000, "mlp_class_name": "LLaMAMoE", "n_expert": 8}
            | {"n_expert_per_token": 2},
            46_702_792_704,
        ),
    ],
    ids=["Llama 3 8B", "Mixtral 8x7B"],
)
def test_names_of_litgpt_count(more, parameters):
    """Fails when the file that LitGPT writes beside its weights describes no model, or another one."""
    model = describe_model(_LITGPT | more, seq_len=128)
    assert total_parameters(model) == parameters


def test_kinds_of_litgpt_that_are_not_known_are_refused():
    """Fails when an MLP of a class that nobody knows counts like one with two matrices."""
    with pytest.raises(ConfigError, match="MoMMLP"):
        describe_model(_LITGPT | {"mlp_class_name": "MoMMLP"}, seq_len=128)
