"""Model and training in a topology file, for traces that hold neither."""

import json

import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze.align.topology.file import load_topology
from meshscope.analyze.align.topology.kept import keep_topology, with_kept_topology
from meshscope.analyze.align.topology.stated import apply_topology
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
TRAINING = '[training]\nschedule = "1f1b"\nmicrobatches = 4\ntokens_per_step = 128\n'
DEVICE = 'device_name = "NVIDIA H100 80GB HBM3"\n'
PER_TOKEN = 57_912_852_480


def foreign(tmp_path=None):
    """Return a trace that knows its mesh and nothing of model or training."""
    job = Job(layout=ParallelLayout(pp=4), steps=4)
    unknown = dict.fromkeys(("schedule", "microbatches"))
    return capture(job, uniform(10 * MS, 20 * MS), **unknown)


def stated(folder, text):
    """Return the trace with what a topology file states."""
    (folder / "job.toml").write_text(text)
    return apply_topology(foreign(), load_topology(folder / "job.toml"))


def test_a_config_of_hugging_face_gives_mfu(tmp_path):
    """Traces of other tools would have no MFU, and nobody could help it."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = '[model]\nhugging_face = "config.json"\nseq_len = 8192\n'
    result = diagnose(stated(tmp_path, model + TRAINING + DEVICE))
    seconds = result.step_time_ns * 1e-9
    assert result.utilization.mfu == pytest.approx(PER_TOKEN * 128 / (4 * 989e12 * seconds))
    assert result.bubble.ideal_frac == pytest.approx(3 / 7)
    assert result.run["model"]["kv_heads"] == 8


def test_flops_of_a_token_give_mfu_without_a_model(tmp_path):
    """Whoever trains a model that no formula counts would never learn its MFU."""
    training = "[training]\ntokens_per_step = 4096\nflops_per_token = 5e10\npeak_flops = 1e15\n"
    result = diagnose(stated(tmp_path, training))
    seconds = result.step_time_ns * 1e-9
    assert result.utilization.mfu == pytest.approx(5e10 * 4096 / (4 * 1e15 * seconds))
    assert result.utilization.flops_convention == "stated"


MEGATRON_LOG = """
------------------------ arguments ------------------------
  group_query_attention ........................... True
  num_query_groups ................................ 8
  num_layers ...................................... 32
  hidden_size ..................................... 4096
  num_attention_heads ............................. 32
  ffn_hidden_size ................................. 14336
  swiglu .......................................... True
  seq_length ...................................... 8192
  padded_vocab_size ............................... 128256
  normalization ................................... RMSNorm
  disable_bias_linear ............................. True
  position_embedding_type ......................... rope
  untie_embeddings_and_output_weights ............. True
  pipeline_model_parallel_size .................... 4
  global_batch_size ............................... 8
  micro_batch_size ................................ 2
"""


def _json(text):
    from meshscope.analyze.formulas.planning.model_file import _PRINTED, read_scalar

    found = (_PRINTED.match(line) for line in text.splitlines())
    return json.dumps({match[1]: read_scalar(match[2]) for match in found if match})


def _yaml(text):
    return "\n".join(
        f"  {name}: {value}" for name, value in json.loads(_json(text)).items()
    ).replace("None", "null")


@pytest.mark.parametrize("form", [str, _json, _yaml], ids=["printed", "json", "yaml"])
def test_arguments_of_megatron_give_model_and_batch(tmp_path, form):
    """Its users would have to type what their log says."""
    (tmp_path / "args.txt").write_text(form(MEGATRON_LOG))
    trace = stated(tmp_path, '[model]\nmegatron = "args.txt"\n')
    assert trace.run["schedule"] == "1f1b"
    assert trace.run["microbatches"] == 4
    assert trace.run["tokens_per_step"] == 8 * 8192
    assert diagnose(trace).utilization.flops_per_step == PER_TOKEN * 8 * 8192


def test_what_the_trace_says_otherwise_stays_visible(tmp_path):
    """A slip in the file would replace what was measured in silence."""
    (tmp_path / "job.toml").write_text("[training]\nmicrobatches = 8\n")
    job = Job(layout=ParallelLayout(pp=2), steps=3)
    trace = apply_topology(capture(job, uniform(MS, MS)), load_topology(tmp_path / "job.toml"))
    assert trace.run["microbatches"] == 8
    assert any("microbatches = 8, the trace 4" in limit for limit in texts(trace.limits))


def test_the_file_of_the_model_is_kept_with_the_run(tmp_path):
    """A run that was ingested with a model would lose it where the config is moved."""
    from dataclasses import replace

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "job.toml").write_text('[model]\nhugging_face = "config.json"\nseq_len = 64\n')
    run = tmp_path / "run"
    run.mkdir()
    trace = replace(foreign(), path=run, _frames={})
    for _ in range(2):
        keep_topology(trace, tmp_path / "job.toml")
    (tmp_path / "config.json").unlink()
    assert with_kept_topology(trace).run["seq_len"] == 64


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[model]\nnum_layers = 2\n", "missing"),
        ("[model]\nlayers = 2\n", "unknown field 'layers'"),
        ('[model]\nhugging_face = "absent.json"\n', "cannot be read"),
        ('[model]\nhugging_face = "a"\nmegatron = "b"\n', "the same thing"),
        ("[model]\nmegatron = 3\n", "not a file"),
        ("[training]\ntokens_per_step = -4\n", "not a count"),
        ("[training]\npeak_flops = -1.0\n", "not a peak"),
        ("[training]\nflops_per_token = true\n", "not a number of FLOPs"),
        ("[training]\nflops_per_token = 1e40\n", "not a number of FLOPs"),
        ('[training]\nschedule = "fast"\n', "not a schedule"),
        ("[training]\ntokens = 4\n", "unknown field 'tokens'"),
        ("model = 3\n", "not a table"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path, text, word):
    """A misspelt field would be ignored, and MFU stay unknown."""
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(ConfigError, match=word) as found:
        load_topology(tmp_path / "job.toml")
    assert "job.toml" in found.value.where or "absent.json" in found.value.where
