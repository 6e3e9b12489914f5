"""Launch scripts as files of arguments: what they set is read, and what they compute is named, never guessed."""

import pytest

from meshscope.analyze.formulas.planning.launch_script import arguments_of_script
from meshscope.analyze.formulas.planning.model_file import read_model_file
from meshscope.probe.schema.errors import ConfigError

SCRIPT = """#!/bin/bash
# An example:  --num-layers 99
export HIDDEN=4096;
NNODES=${SLURM_NNODES:-"2"}
LAYERS='32'
HEADS=${HIDDEN_HEADS:-32}
LAUNCH=(--nproc_per_node 8 --nnodes $NNODES)
MODEL_ARGS=(
    --num-layers ${LAYERS}      # --num-layers 98
    --hidden-size $HIDDEN
    --num-attention-heads "$HEADS"
    --ffn-hidden-size=14336
    --swiglu
    --disable-bias-linear ${NORM_ARGS[@]}
    --untie-embeddings-and-output-weights
    --normalization RMSNorm --position-embedding-type rope
    --num-query-groups 8 --group-query-attention
    --seq-length 8192 --vocab-size 128256)
MORE="
    --micro-batch-size 1 \\
    --global-batch-size 128 \\
    --bf16
"
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size 2 $MORE --pipeline-model-parallel-size 2 | tee log
"""


def test_a_model_is_read_from_a_launch_script(tmp_path):
    """Fails when the file that everybody has of a Megatron job is refused, or its comments count."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    found = read_model_file(path)
    model = {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_heads": 32,
        "ffn_size": 14336,
        "kv_heads": 8,
    }
    assert model.items() <= found.model.items()
    assert (found.model["gated"], found.model["tied"], found.model["mlp_bias"]) == (
        True,
        False,
        False,
    )
    settings = {"tp": 2, "pp": 2, "microbatch_size": 1, "global_batch_size": 128, "world_size": 16}
    assert settings.items() <= found.settings.items()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--seq-length=8192", "seq_length", "8192"),
        ("--swiglu | tee log", "swiglu", True),
        ("--swiglu ${OUTPUT_ARGS}", "swiglu", True),
        ("--moe-layer-freq ([0]*3+[1]*58)", "moe_layer_freq", "([0]*3+[1]*58)"),
        ("--moe-layer-freq '([0]*3+[1]*58)'", "moe_layer_freq", "([0]*3+[1]*58)"),
        ("--seq-length $((A * B)) --bf16", "seq_length", "$((A * B))"),
        ("--seq-length ${SEQ:-4096}", "seq_length", "4096"),
        ("--no-position-embedding --bf16", "add_position_embedding", False),
        ("--use-rotary-position-embeddings", "position_embedding_type", "rope"),
        ("--num-layers 4", "num_layers", "4"),
    ],
)
def test_what_one_argument_says(line, name, value):
    """Fails when a flag takes the next word for its value, or a value is lost in its quotes."""
    assert arguments_of_script(f"run.py --num-layers 2 {line}")[name] == value


def test_groups_without_their_flag_do_not_count():
    """Fails when a number of groups is used that Megatron ignores."""
    found = arguments_of_script("--num-layers 2 --num-query-groups 8")
    assert found["group_query_attention"] is False


def test_what_a_script_computes_is_named(tmp_path):
    """Fails when a size that only a shell knows is taken to be something else."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.replace("--hidden-size $HIDDEN", "--hidden-size $((64 * HEADS))"))
    with pytest.raises(ConfigError, match=r"hidden_size.*\$\(\(64 \* HEADS\)\)"):
        read_model_file(path)


@pytest.mark.parametrize(
    "text", ["num_layers: 2\nhidden_size: 8\n", "--num-layers: 2\n", "echo --help\n"]
)
def test_other_texts_are_no_scripts(text):
    """Fails when YAML is read as a command line."""
    assert arguments_of_script(text) is None
