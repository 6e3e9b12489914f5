"""Descriptions of models: parameters and FLOPs against published and counted figures."""

import json

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import describe_model, flops_per_token
from meshscope.probe.schema.model.counts import conventions_of, idle_parameters, total_parameters

BIASED = {
    "norm_shift": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "tied": True,
}


def sizes(layers, hidden, heads, kv, ffn, vocab, seq, **more):
    """Return the fields of a model."""
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "kv_heads": kv,
        "ffn_size": ffn,
        "vocab_size": vocab,
        "seq_len": seq,
        **more,
    }


GPT3 = sizes(96, 12288, 96, 96, 49152, 51200, 2048, learned_positions=2048, **BIASED)
GPT2 = sizes(12, 768, 12, 12, 3072, 50257, 1024, learned_positions=1024, **BIASED)
LLAMA3 = sizes(32, 4096, 32, 8, 14336, 128256, 8192, gated=True)
LLAMA2_70B = sizes(80, 8192, 64, 8, 28672, 32000, 4096, gated=True)
LLAMA_1B = sizes(16, 2048, 32, 8, 8192, 128256, 8192, gated=True, tied=True)
QWEN3 = {"gated": True, "qk_norm": True, "head_dim": 128}
QWEN3_SMALL = sizes(28, 1024, 16, 8, 3072, 151936, 8192, tied=True, **QWEN3)
MIXTRAL = sizes(32, 4096, 32, 8, 14336, 32000, 4096, gated=True, experts=8, experts_per_token=2)
QWEN3_30B = sizes(48, 2048, 32, 4, 0, 151936, 8192, experts=128, experts_per_token=8, **QWEN3)
QWEN3_30B |= {"expert_ffn_size": 768}


@pytest.mark.parametrize(
    ("fields", "parameters", "full", "causal"),
    [
        (GPT3, 174_615_846_912, 1_076_442_955_776, 1_061_947_441_152),
        (GPT2, 124_439_808, 854_438_400, 797_815_296),
        (LLAMA3, 8_030_261_248, 57_912_852_480, 51_470_401_536),
        ({**LLAMA3, "seq_len": 131072}, 8_030_261_248, 251_186_380_800, 148_107_165_696),
        (LLAMA2_70B, 68_976_648_192, 444_491_366_400, 428_385_239_040),
        (LLAMA_1B, 1_235_814_400, 10_635_706_368, 9_025_093_632),
        (QWEN3_SMALL, 596_049_920, 9_213_050_880, 6_394_478_592),
        (MIXTRAL, 46_702_792_704, 82_933_972_992, 79_712_747_520),
        (QWEN3_30B, 30_532_122_624, 37_577_293_824, 27_913_617_408),
    ],
    ids=["gpt3", "gpt2", "llama3", "128k", "70b", "1b", "qwen3", "mixtral", "qwen3-30b"],
)
def test_known_models(fields, parameters, full, causal):
    """A tied model would have 0.6, one with experts 5 times its MFU."""
    model = describe_model(fields)
    assert total_parameters(model) == parameters
    assert flops_per_token(model) == flops_per_token(model, "full") == full
    assert flops_per_token(model, "causal") == causal


def test_palm_counts_all_parameters_of_a_dense_model():
    """The published 61.1 GFLOPs a token of Llama 3 8B at 8k would not come out."""
    model = describe_model(LLAMA3)
    assert flops_per_token(model, "palm") == 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192
    assert flops_per_token(model, "palm") / 1e9 == pytest.approx(61.1, abs=0.05)


def test_palm_counts_the_experts_that_a_token_passes():
    """With all experts, MFU of a sparse model would be several times too high."""
    model = describe_model(MIXTRAL)
    idle = 32 * 6 * 3 * 4096 * 14336
    assert idle_parameters(model) == idle
    attention = 12 * 32 * 4096 * 4096
    assert flops_per_token(model, "palm") == 6 * (46_702_792_704 - idle) + attention


def test_without_attention_only_weights_count():
    """Two conventions would differ by more than attention."""
    model = describe_model(LLAMA3)
    full = flops_per_token(model)
    assert full - flops_per_token(model, "no_attention") == 12 * 32 * 4096 * 8192


def test_packed_documents_count_by_their_lengths():
    """MFU of a job that packs short documents would count attention that nobody computes."""
    model = describe_model(LLAMA3)
    lengths = [1000, 3000, 4192]
    seen = sum(length**2 for length in lengths) / sum(lengths)
    attention = flops_per_token(model, "full", seen) - flops_per_token(model, "no_attention")
    assert attention == pytest.approx(12 * 32 * 4096 * seen)


def test_a_window_bounds_what_a_token_sees():
    """A model with sliding windows would seem faster than it is, the more so the longer it reads."""
    model = describe_model({**LLAMA3, "window": 1024, "windowed_layers": list(range(0, 32, 2))})
    of_weights = flops_per_token(model, "no_attention")
    full = 12 * 4096 * (16 * 1024 + 16 * 8192)
    assert flops_per_token(model) - of_weights == full
    assert flops_per_token(model, "full") - of_weights == 12 * 4096 * 32 * 8192
    assert "full" in conventions_of(model)
    assert "full" not in conventions_of(describe_model({**LLAMA3, "window": 8192}))
    # Token t sees min(t, 1024) keys, half a key more or less.
    mean = sum(min(t, 1024) for t in range(8192)) / 8192
    causal = 12 * 4096 * (16 * mean + 16 * 8192 / 2)
    assert flops_per_token(model, "causal") - of_weights == pytest.approx(causal, rel=1e-3)


def test_chunks_begin_anew():
    """Chunked attention would count like a window that moves along: 4 % too much of Llama 4 at 16k."""
    chunked = {**LLAMA3, "seq_len": 20_000, "window": 8192, "chunked": True}
    model = describe_model(chunked)
    mean = sum(t % 8192 for t in range(20_000)) / 20_000
    of_weights = flops_per_token(model, "no_attention")
    causal = 12 * 4096 * 32 * mean
    assert flops_per_token(model, "causal") - of_weights == pytest.approx(causal, rel=1e-3)
    assert flops_per_token(model) - of_weights == pytest.approx(2 * causal, rel=1e-3)
    short = describe_model({**chunked, "seq_len": 4096})
    assert flops_per_token(short) == flops_per_token(describe_model({**LLAMA3, "seq_len": 4096}))


def test_experts_of_unlike_widths_are_refused():
    """The width of the dense MLP would be taken for that of every expert."""
    experts = {"num_experts": 8, "moe_topk": 2, "moe_intermediate_size": [64, 64, 32, 64]}
    with pytest.raises(ConfigError, match="moe_intermediate_size"):
        describe_model(_LIKE_LLAMA | {"model_type": "hunyuan_v1_moe"} | experts, seq_len=128)


def test_mpt_states_its_parts_inside_of_others():
    """Heads of keys would be too many, and a gate would be missing."""
    mpt = {"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 100}
    one = describe_model(mpt | {"attn_config": {"attn_type": "multiquery_attention"}}, seq_len=8)
    assert one.kv_heads == 1
    grouped = {"attn_type": "grouped_query_attention", "kv_n_heads": 2}
    gated = {"attn_config": grouped, "ffn_config": {"ffn_type": "mptglu"}}
    model = describe_model(mpt | gated, seq_len=8)
    assert (model.kv_heads, model.gated) == (2, True)


def test_layers_with_a_window_are_read_from_what_a_config_has():
    """A config that lists no layer types would have a window in all layers, or be refused."""
    windowed = _LIKE_LLAMA | {"sliding_window": 8, "sliding_window_pattern": "LLLG"}
    assert describe_model(windowed, seq_len=128).windowed_layers == (0, 1, 2)
    chunks = _LIKE_LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 8}
    model = describe_model(chunks, seq_len=128)
    assert (model.windowed_layers, model.window, model.chunked) == ((0, 1, 2), 8, True)
    stated = describe_model(chunks | {"no_rope_layers": [0, 1, 1, 1]}, seq_len=128)
    assert stated.windowed_layers == (1, 2, 3)


def test_latent_attention_and_first_dense_layers():
    """DeepSeek-V3 would not have its 671 thousand million parameters, or FLOPs of full heads."""
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "vocab_size": 129280,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "head_dim": 64,
        "num_key_value_heads": 128,
        "tie_word_embeddings": False,
    }
    model = describe_model(config, seq_len=4096)
    assert total_parameters(model) == 671_026_404_352
    # 37 thousand million active parameters (arXiv 2412.19437), without the input table here.
    products = flops_per_token(model, "no_attention") / 6
    assert products == pytest.approx(37.6e9 - 129280 * 7168, rel=0.01)
    attention = flops_per_token(model) - flops_per_token(model, "no_attention")
    assert attention == 6 * 61 * 128 * (192 + 128) * 4096
    more = describe_model({**config, "num_nextn_predict_layers": 1}, seq_len=4096)
    assert total_parameters(more) - total_parameters(model) > 11e9


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}, 124_439_808),
        ({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True, "bias": False, "parallel_attn": True}, 6_921_720_704),
        ({"model_type": "qwen2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936, "intermediate_size": 22016, "tie_word_embeddings": False}, 12_049_846_272),
        ({"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216, "vocab_size": 256000}, 2_614_341_888),
        ({"model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "tie_word_embeddings": False}, 3_821_079_552),
        ({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": False}, 30_532_122_624),
        ({"model_type": "starcoder2", "hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2, "intermediate_size": 12288, "vocab_size": 49152, "use_bias": True}, 3_030_371_328),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_configs_have_the_parameters_of_their_classes(config, parameters):
    """What a family builds without saying so (ties, biases, gates) would be missing."""
    assert (
        total_parameters(describe_model(json.loads(json.dumps(config)), seq_len=2048)) == parameters
    )


_LIKE_LLAMA: dict[str, object] = {
    "model_type": "made_up",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "head_dim": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 1000,
}


def test_a_dense_family_that_states_all_of_llama_is_counted_like_it():
    """MFU of each new family would be unknown until we know its name."""
    made_up = describe_model(_LIKE_LLAMA, seq_len=128)
    assert flops_per_token(made_up) == flops_per_token(
        describe_model(_LIKE_LLAMA | {"model_type": "llama"}, seq_len=128)
    )


@pytest.mark.parametrize(
    "part",
    [{"total_ut_steps": 4}, {"mamba_headdim": 64}, {"cla_share_factor": 2}, {"moe_every": 2}],
)
def test_a_family_that_is_not_known_may_have_parts_that_llama_has_not(part):
    """Fails when a model whose layers run four times has a quarter of its FLOPs."""
    with pytest.raises(ConfigError, match="unknown family"):
        describe_model(_LIKE_LLAMA | part, seq_len=128)


def test_a_count_for_each_layer_is_one_where_all_are_alike():
    """Hunyuan's own configs would be refused: they state experts as lists."""
    counts: dict[str, object] = {"num_experts": 8, "moe_topk": 2, "num_shared_expert": 1}
    lists = {name: [count] * 4 for name, count in counts.items()} | {"num_experts": 8}
    models = [
        describe_model(_LIKE_LLAMA | {"model_type": "hunyuan_v1_moe"} | stated, seq_len=128)
        for stated in (counts, lists)
    ]
    assert models[0] == models[1]
    assert models[0].shared_ffn_size == 512


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "t5", "d_model": 512, "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "mamba", "hidden_size": 768, "state_size": 16}, "without attention"),
        ({"model_type": "gemma3", "text_config": {}, "vision_config": {"x": 1}}, "vision"),
        ({"model_type": "made_up", "hidden_size": 8, "num_hidden_layers": 2}, "unknown family"),
        (_LIKE_LLAMA | {"num_experts": 8, "num_experts_per_tok": 2}, "unknown family"),
        (
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "layer_types": ["linear_attention"] * 2,
            },
            "linear_attention",
        ),
        (_LIKE_LLAMA | {"cross_attention_layers": [3]}, "cross attention"),
        (_LIKE_LLAMA | {"index_topk": 2048}, "sparse attention"),
        (_LIKE_LLAMA | {"lambda_std_dev": 0.1}, "differential attention"),
        (_LIKE_LLAMA | {"num_codebooks": 8}, "another head"),
        (_LIKE_LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "another head"),
        (_LIKE_LLAMA | {"word_embed_proj_dim": 128}, "another width"),
        (_LIKE_LLAMA | {"layer_types": ["full_attention"]}, "names 1 layers of 4"),
    ],
    ids=[
        *("t5", "mamba", "vision", "unknown", "experts of an unknown one", "linear", "cross"),
        *("sparse", "differential", "codes", "classifier", "embedding", "kinds"),
    ],
)
def test_what_no_formula_counts_is_refused(config, word):
    """A guess would be a wrong MFU instead of none."""
    with pytest.raises(ConfigError, match=word):
        describe_model(config, seq_len=128)


MEGATRON = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "seq_length": 8192,
    "group_query_attention": True,
    "num_query_groups": 8,
    "swiglu": True,
    "ffn_hidden_size": 14336,
    "padded_vocab_size": 128256,
    "normalization": "RMSNorm",
    "untie_embeddings_and_output_weights": True,
    "disable_bias_linear": True,
    "position_embedding_type": "rope",
    "kv_channels": 128,
}


@pytest.mark.parametrize("gate", ["quick_geglu", "geglu", "geglu_tanh", "reglu"])
def test_megatron_has_gates_of_several_functions(gate):
    """Fails when MLPs with another gate than SwiGLU have two thirds of their FLOPs."""
    plain = {name: value for name, value in MEGATRON.items() if name != "swiglu"}
    assert describe_model(plain | {gate: True}).gated
    assert not describe_model(plain | {gate: False, "bias_swiglu_fusion": True}).gated


def test_megatron_arguments():
    """MFU would be unknown, or that of its defaults: learned positions, biases, tied, two matrices."""
    assert describe_model(MEGATRON) == describe_model({**LLAMA3, "kv_heads": 8})
    plain = {
        name: MEGATRON[name]
        for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
    }
    model = describe_model({**plain, "vocab_size": 50257, "tensor_model_parallel_size": 8})
    assert (model.ffn_size, model.gated, model.tied) == (16384, False, True)
    assert model.vocab_size == 51200
    assert (model.learned_positions, model.mlp_bias, model.norm_shift) == (8192, True, True)


def test_megatron_experts_and_latent_attention():
    """Dense first layers would count as layers of experts."""
    model = describe_model(
        {
            **MEGATRON,
            "num_experts": 64,
            "moe_router_topk": 6,
            "moe_ffn_hidden_size": 1408,
            "moe_layer_freq": "([0]*1+[1]*31)",
            "moe_shared_expert_intermediate_size": 2816,
            "multi_latent_attention": True,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_head_dim": 128,
            "qk_pos_emb_head_dim": 64,
            "v_head_dim": 128,
        }
    )
    assert model.dense_layers == (0,)
    assert (model.expert_ffn_size, model.shared_ffn_size) == (1408, 2816)
    assert (model.head_dim, model.v_head_dim, model.q_lora_rank) == (192, 128, 0)
    with pytest.raises(ConfigError, match="pattern"):
        describe_model({**MEGATRON, "num_experts": 8, "moe_layer_freq": "__import__('os')"})


@pytest.mark.parametrize("window", [(127, 0), [127, 0], "127,0", "(127, 0)", 127])
def test_megatron_writes_its_window_in_many_ways(window):
    """A window that is not understood would make attention 32 times as dear at 4k."""
    model = describe_model({**MEGATRON, "window_size": window, "window_attn_skip_freq": 2})
    assert (model.window, len(model.windowed_layers)) == (128, 16)
    assert describe_model({**MEGATRON, "window_size": "-1,0"}).window == 0


def test_a_window_that_cannot_be_read_is_refused():
    """The whole sequence would be counted in the place of a window."""
    with pytest.raises(ConfigError, match="window_size"):
        describe_model({**MEGATRON, "window_size": "wide"})


def test_names_of_megatron_deepspeed_count():
    """Heads of keys, top-k and layers of experts would be those of Megatron-LM's defaults."""
    plain = {name: value for name, value in MEGATRON.items() if "quer" not in name}
    dense = {**plain, "num_key_value_heads": 4, "num_experts": [1], "deepspeed": True}
    assert describe_model(dense).kv_heads == 4
    assert describe_model({**dense, "group_query_attention": False}).kv_heads == 4
    sparse = {**dense, "num_experts": [64], "topk": 1, "expert_interval": 2}
    model = describe_model(sparse)
    assert (model.experts, model.experts_per_token) == (64, 1)
    assert model.dense_layers == tuple(range(0, 32, 2))
    assert describe_model({**sparse, "mlp_type": "residual"}).shared_ffn_size == 14336


def test_names_of_nemo_count():
    """A gate that the function's name says would be left out: a third of the MLP."""
    plain = {name: MEGATRON[name] for name in MEGATRON if name not in ("swiglu", "seq_length")}
    model = describe_model(
        {**plain, "activation": "fast-swiglu", "bias": False, "encoder_seq_length": 8192}
    )
    assert model == describe_model(MEGATRON)


@pytest.mark.parametrize(
    "other",
    [
        {"hybrid_attention_ratio": 0.08},
        {"is_hybrid_model": True},
        {"experimental_attention_variant": "gated_delta_net"},
        {"linear_attention_freq": 4},
        {"attention_output_gate": True},
        {"moe_latent_size": 1024},
        {"heterogeneous_layers_config_path": "layers.json"},
        {"encoder_num_layers": 12},
        {"decoder_num_layers": 32},
        {"program": "pretrain_bert"},
        {"spec": ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_layers_of_megatron_are_refused(other):
    """Layers without attention, or with another one, would count as a decoder's."""
    with pytest.raises(ConfigError, match="has layers of the kind"):
        describe_model({**MEGATRON, **other})


def test_arguments_that_build_no_other_layers_are_no_obstacle():
    """The list that Megatron prints names all its arguments: no decoder would be known."""
    unset = {
        "hybrid_attention_ratio": 0.0,
        "is_hybrid_model": False,
        "experimental_attention_variant": None,
        "attention_output_gate": False,
        "encoder_num_layers": 32,
        "decoder_num_layers": None,
        "spec": None,
        "program": "pretrain_gpt",
    }
    assert describe_model({**MEGATRON, **unset}) == describe_model(MEGATRON)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kv_heads": 5}, "divide"),
        ({"num_layers": 0}, "at least 1"),
        ({"hidden_size": -4096}, "not a size"),
        ({"hidden_size": 2.5}, "not a size"),
        ({"seq_len": None}, "missing"),
        ({"experts_per_token": 2}, "no experts"),
        ({"experts": 4}, "not between"),
        ({"tied": 1}, "neither"),
        ({"wide": 1}, "unknown field"),
        ({"window": 8, "windowed_layers": [99]}, "outside"),
        ({"kv_lora_rank": 8}, "width of a head"),
    ],
)
def test_what_no_model_can_be_is_refused(change, word):
    """A slip of the pen would give a number that cannot be true."""
    with pytest.raises(ConfigError, match=word) as found:
        describe_model({**LLAMA3, **change})
    assert found.value.remedy
