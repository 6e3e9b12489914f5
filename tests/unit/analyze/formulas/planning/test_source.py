"""Models and settings from our TOML, Hugging Face configs and Megatron's arguments."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.balance.settings import framework_settings
from meshscope.analyze.formulas.planning import PlanSettings, planned_job
from meshscope.analyze.formulas.planning.megatron_settings import layers_of_layout
from meshscope.probe.schema.errors import ConfigError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 12,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
MEGATRON = {
    "num-layers": "24",
    "hidden-size": "1024",
    "num-attention-heads": "16",
    "group-query-attention": "true",
    "num-query-groups": "4",
    "micro-batch-size": "2",
    "global-batch-size": "64",
    "seq-length": "2048",
    "vocab-size": "50257",
    "tensor-model-parallel-size": "2",
    "pipeline-model-parallel-size": "2",
    "num-layers-per-virtual-pipeline-stage": "3",
    "use-distributed-optimizer": "true #a comment",
    "sequence-parallel": "true",
    "recompute-granularity": "selective",
    "cross-entropy-loss-fusion": "true",
    "position-embedding-type": "rope",
    "bf16": "true",
}


def planned(tmp_path, content, name="model.json", **settings):
    """Return the job and the limits of a file."""
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return planned_job(path, PlanSettings(**settings))


def test_hugging_face_config(tmp_path):
    """Fails if a config is not read, or an assumed length is not said."""
    job, limits = planned(tmp_path, LLAMA, tp=2, dp=4)
    assert (job.model.num_layers, job.model.kv_heads, job.model.seq_len) == (12, 4, 4096)
    assert job.sequence_parallel
    assert any("4,096" in text for text in map(str, limits))
    assert not planned(tmp_path, LLAMA, seq_len=512, dp=1)[1]


def test_megatron_arguments_bring_their_settings(tmp_path):
    """Fails if mesh, batch or memory settings of Megatron's arguments are lost."""
    job, _ = planned(tmp_path, MEGATRON, dp=2)
    layout = job.layout
    assert (layout.tp, layout.pp, layout.vpp, job.microbatches) == (2, 2, 4, 16)
    assert job.schedule == "interleaved-1f1b"
    assert (job.zero, job.gradient_bytes, job.recompute) == (1, 4, "selective")
    assert job.sequence_parallel
    assert job.fused_cross_entropy
    assert job.hidden_dropout
    assert job.model.vocab_size == 50432


def test_the_same_arguments_as_yaml(tmp_path):
    """Fails if a YAML file with dashes before the names is read otherwise than JSON."""
    lines = ["MODEL_ARGS:", *(f"  --{name}: {value}" for name, value in MEGATRON.items())]
    job, _ = planned(tmp_path, "\n".join(lines), "model.yaml", dp=2)
    assert job == planned(tmp_path, MEGATRON, dp=2)[0]


def test_toml_with_a_layout(tmp_path):
    """Fails if [layout] of our TOML is not used, or an option does not take its place."""
    text = """
[model]
num_layers = 8
hidden_size = 512
num_heads = 8
vocab_size = 1000
seq_len = 256
[layout]
tp = 2
pp = 4
microbatches = 8
zero = 0
recompute = "full"
"""
    job, _ = planned(tmp_path, text, "job.toml")
    assert (job.layout.tp, job.layout.pp, job.zero, job.recompute) == (2, 4, 0, "full")
    assert planned(tmp_path, text, "job.toml", pp=2)[0].layout.pp == 2


def test_layers_cut_the_model_or_split_it(tmp_path):
    """Fails if --layers N does not cut, or a list does not split."""
    assert planned(tmp_path, LLAMA, layers="6", pp=2)[0].split == (3, 3)
    assert planned(tmp_path, LLAMA, layers="4,3,3,2", pp=4)[0].split == (4, 3, 3, 2)


def test_dense_first_layers_survive_a_cut(tmp_path):
    """Fails if a cut model names dense layers that it no longer has."""
    experts = {
        **LLAMA,
        "model_type": "deepseek_v3",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 3,
    }
    assert planned(tmp_path, experts, layers="2")[0].model.dense_layers == (0, 1)


def test_ends_that_count_as_layers(tmp_path):
    """Fails if Megatron's settings for the ends of the pipeline are not followed."""
    plain = {k: v for k, v in MEGATRON.items() if "virtual" not in k}
    counted = {
        **plain,
        "num-layers": "22",
        "account-for-embedding-in-pipeline-split": "true",
        "account-for-loss-in-pipeline-split": "true",
    }
    assert planned(tmp_path, counted, dp=2, pp=4)[0].split == (5, 6, 6, 5)
    last = {**plain, "decoder-last-pipeline-num-layers": "3"}
    assert planned(tmp_path, last, dp=2, pp=4)[0].split == (7, 7, 7, 3)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"model_type": "mamba2", "state_size": 16}, "config.json"),
        ({"model_type": "unheard-of"}, "config.json"),
        ({"answer": 42}, "model.json"),
        ("no names here", "model.yaml"),
        ("[model\n", "model.toml"),
        ("[layout]\ntp = 2\n", "model.toml"),
        ("[model]\nnum_layers = 2\n[layout]\ntensor = 2\n", "model.toml"),
        ({k: v for k, v in MEGATRON.items() if k != "vocab-size"}, "model.json"),
        ({**MEGATRON, "tensor-model-parallel-size": "two"}, "model.json"),
        ({**MEGATRON, "hybrid-layer-pattern": "M-M*"}, "model.json"),
    ],
)
def test_what_describes_no_model_is_refused(content, name, tmp_path):
    """Fails if bad input ends in a traceback, in a guess, or without a remedy."""
    with pytest.raises(ConfigError) as error:
        planned(tmp_path, content, name)
    assert error.value.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "zigzag"},
        {"recompute": "some"},
        {"gradient_dtype": "int4"},
        {"layers": "4,x"},
        {"layers": "0"},
        {"pp": 5},
        {"global_batch_size": 7, "microbatch_size": 2},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, tmp_path):
    """Fails if an option is silently ignored."""
    with pytest.raises(ConfigError):
        planned(tmp_path, LLAMA, **settings)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("Et*2|(tt|)*3,m|L", (2, 2, 2, 2, 0, 0)),
        ("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", (2, *(2,) * 34, 3, 2, 2, 2, 1)),
        ("Et|t|t|tL", (1, 1, 1, 1)),
        ("E|(t*4|)*2 L", (0, 4, 4, 0)),
    ],
)
def test_a_layout_of_megatron_is_read(text, layers):
    """Fails when a split that Megatron was told is planned as another one."""
    assert layers_of_layout(text, "layout") == layers


@pytest.mark.parametrize("text", ["", "tE|tL", "Et|t", "Ex|L", "Et*2|(t|*3L", "E(t*9999)*9999|L"])
def test_what_is_no_layout_is_refused(text):
    """Fails when a slip in a layout becomes a split of its own."""
    with pytest.raises(ConfigError):
        layers_of_layout(text, "layout")


@given(st.lists(st.integers(0, 9), min_size=2, max_size=24))
def test_a_split_survives_its_setting_for_megatron(layers):
    """Fails when the layout that balance prints is read as another split."""
    setting = framework_settings(layers, len(layers))["megatron"]
    assert layers_of_layout(setting.split('"')[1], "layout") == tuple(layers)


def test_counts_that_are_not_the_model_are_said(tmp_path):
    """Fails when counts by stage cut the model in silence, or are too few."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    _, said = planned_job(path, PlanSettings(pp=2, layers="6,5"))
    assert any("make 11 layers; the model has 12" in one for one in map(str, said))
    with pytest.raises(ConfigError, match="3 counts are given for 2 stages"):
        planned_job(path, PlanSettings(pp=2, layers="4,4,4"))


def test_a_switch_is_no_text(tmp_path):
    """Fails when "no" switches something on."""
    path = tmp_path / "job.toml"
    sizes = "num_layers = 2\nhidden_size = 64\nnum_heads = 4\nvocab_size = 100\nseq_len = 16\n"
    path.write_text(f'[model]\n{sizes}[layout]\nfused_cross_entropy = "no"\n')
    with pytest.raises(ConfigError, match="not a switch"):
        planned_job(path, PlanSettings())


SIXTEEN_RANKS = {
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "seq_length": 2048,
    "world_size": 16,
}


def of_arguments(tmp_path, **changes):
    """Return the job of Megatron's arguments with some changed."""
    path = tmp_path / "args.json"
    path.write_text(json.dumps(SIXTEEN_RANKS | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"num_layers": 10**25}, "num_layers"),
        ({"swiglu": "maybe"}, "swiglu"),
        ({"bf16": "often"}, "bf16"),
        ({"pipeline_model_parallel_layout": 5}, "pipeline_model_parallel_layout"),
        ({"num_layers_per_virtual_pipeline_stage": 64}, "num_layers_per_virtual"),
        ({"num_experts": 8, "moe_layer_freq": 0}, "moe_layer_freq"),
        ({"num_experts": 8, "moe_layer_freq": "([0]*3+[1]*99)"}, "moe_layer_freq"),
        ({"make_vocab_size_divisible_by": 0}, "make_vocab_size_divisible_by"),
        ({"pipeline_model_parallel_size": 0}, "pipeline_model_parallel_size"),
        ({"pipeline_model_parallel_size": 3}, "world_size"),
        ({"micro_batch_size": 1 << 39}, "microbatch_size"),
    ],
)
def test_arguments_of_another_type_are_refused(changes, where, tmp_path):
    """Fails when a wrong argument hangs the plan, ends in a traceback, or is left out silently."""
    with pytest.raises(ConfigError) as error:
        planned_job(of_arguments(tmp_path, **changes), PlanSettings())
    assert where in error.value.where


def test_replicas_are_what_the_options_leave(tmp_path):
    """Fails when --tp of a job of 16 ranks makes it 32."""
    path = of_arguments(tmp_path)
    assert planned_job(path, PlanSettings())[0].layout.dp == 16
    assert planned_job(path, PlanSettings(tp=2, pp=2))[0].layout.dp == 4
    with pytest.raises(ConfigError, match="16 ranks do not divide"):
        planned_job(path, PlanSettings(cp=32))


def test_a_backend_by_its_number(tmp_path):
    """Fails when the number of an unfused backend counts as fused attention."""
    for backend, is_fused in ((1, True), (2, True), (3, False), ("unfused", False)):
        path = of_arguments(tmp_path, attention_backend=backend)
        assert planned_job(path, PlanSettings())[0].fused_attention is is_fused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 1e30),
        ("num_hidden_layers", False),
        ("num_hidden_layers", 10**12),
        ("tie_word_embeddings", "yes"),
        ("first_k_dense_replace", "three"),
        ("mlp_only_layers", 3),
        ("moe_intermediate_size", [[1]]),
        ("decoder_sparse_step", 2.5),
    ],
)
def test_a_config_of_another_type_is_refused(name, value, tmp_path):
    """Fails when a damaged config.json ends in a traceback or takes forever."""
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "intermediate_size": 1024,
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    planned_job(path, PlanSettings(seq_len=64))
    path.write_text(json.dumps(config | {name: value}))
    with pytest.raises(ConfigError) as error:
        planned_job(path, PlanSettings(seq_len=64))
    assert "config.json" in error.value.where
    assert error.value.remedy
