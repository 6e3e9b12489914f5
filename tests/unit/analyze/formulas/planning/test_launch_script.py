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
        ("--seq-length 8192); fi", "seq_length", "8192"),
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


@pytest.mark.parametrize(
    ("lines", "layers"),
    [
        ("LAYERS=${LAYERS:-24}", "24"),
        ("A=1; LAYERS=24; B=2", "24"),
        ("LAYERS=12\nLAYERS=24", "24"),
        ('if [ -z "$LAYERS" ]; then LAYERS=24; fi', "24"),
        ("if [ $SIZE = 7B ]; then\nLAYERS=32\nelse\nLAYERS=40\nfi", "$LAYERS"),
        ("case $1 in\n  7b) LAYERS=32;;\n  13b) LAYERS=40;;\nesac", "$LAYERS"),
        ("LAYERS=32\n[[ $SIZE = 13B ]] && LAYERS=40", "$LAYERS"),
        ("if [ $SIZE = 7B ]; then\nLAYERS=32\nfi\nLAYERS=24", "24"),
    ],
)
def test_what_branches_set_is_taken_where_they_agree(lines, layers):
    """Fails when the model of one branch is planned and that of another one runs."""
    found = arguments_of_script(f"{lines}\nrun.py --num-layers $LAYERS --hidden-size 64")
    assert found["num_layers"] == layers


def test_arguments_that_branches_leave_open_are_named(tmp_path):
    """Fails when the last of the sizes in a script is planned, whatever size was asked for."""
    path = tmp_path / "train.sh"
    path.write_text(
        "if [ $SIZE = 7B ]; then\nARGS=(--num-layers 32 --hidden-size 64)\n"
        "else\nARGS=(--num-layers 40 --hidden-size 64)\nfi\n"
        "run.py ${ARGS[@]} --num-attention-heads 2 --seq-length 8 --vocab-size 64"
    )
    with pytest.raises(ConfigError, match="num_layers: '32 or 40'"):
        read_model_file(path)


@pytest.mark.parametrize("program", ["bert", "t5", "mamba", "vlm", "vision_classify", "retro"])
def test_programs_of_other_models_are_refused(tmp_path, program):
    """Fails when an encoder, or layers without attention, are counted as those of a decoder."""
    path = tmp_path / "train.sh"
    path.write_text(
        f"torchrun pretrain_{program}.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--seq-length 8 --vocab-size 64"
    )
    with pytest.raises(ConfigError, match=f"program: has layers of the kind 'pretrain_{program}'"):
        read_model_file(path)


@pytest.mark.parametrize("prefix", ["", "0: ", "[default0]:", "0: 2026-01-01 12:00:00 INFO "])
def test_the_printed_list_is_read_after_any_prefix(tmp_path, prefix):
    """Fails when the log of a launcher that puts a rank or a time before each line is refused."""
    sizes = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "seq_length": 8,
        "padded_vocab_size": 64,
    }
    path = tmp_path / "train.log"
    path.write_text("".join(f"{prefix}  {name} ........ {size}\n" for name, size in sizes.items()))
    assert read_model_file(path).model["num_layers"] == 2


def test_lists_of_yaml_may_have_an_item_a_line(tmp_path):
    """Fails when a window, or the layers with experts, are left out as yaml.dump writes them."""
    path = tmp_path / "model.yaml"
    path.write_text(
        "model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 2\n  seq_length: 8\n"
        "  vocab_size: 64\n  window_size:\n  - 3\n  - 0\n  num_moe_experts: 4\n"
        "  moe_layer_freq:  # none first\n\n    - 0\n    - 1\noptimizer:\n  betas:\n  - 0.9\n  - 0.95\n"
    )
    model = read_model_file(path).model
    assert (model["window"], model["dense_layers"]) == (4, [0])
