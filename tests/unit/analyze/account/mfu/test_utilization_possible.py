"""MFU that cannot be true is refused, with the input that is likely wrong; HFU from what is seen."""

import json

import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.formulas.flops import flops_per_token, known_model
from meshscope.analyze.gate.budgets import Budget, check, exit_code
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import CONVENTIONS

H100 = "NVIDIA H100 80GB HBM3"
MODEL = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_heads": 32,
    "kv_heads": 8,
    "ffn_size": 14336,
    "vocab_size": 128256,
    "seq_len": 8192,
    "gated": True,
    "tied": False,
}
PER_TOKEN = 57_912_852_480


def run_of(**run):
    """Return the diagnosis of 4 ranks with steps of 122 ms or so."""
    known = {"model": json.dumps(MODEL), "device_name": H100, **run}
    layout = ParallelLayout(dp=4)
    return diagnose(capture(Job(layout=layout, steps=4), uniform(10 * MS, 20 * MS), **known))


def possible_tokens(result, mfu):
    """Return the tokens of a step that give an MFU."""
    return int(mfu * 4 * 989e12 * result.step_time_ns * 1e-9 / PER_TOKEN)


def test_all_conventions_at_once():
    """A figure of a paper could be compared with none of ours."""
    tokens = possible_tokens(run_of(), 0.4)
    result = run_of(tokens_per_step=tokens)
    use = diagnosis_to_json(result)["utilization"]
    assert use["mfu"] == pytest.approx(0.4, rel=1e-2)
    assert use["mfu_by_convention"].keys() == CONVENTIONS.keys()
    by_name = use["mfu_by_convention"]
    assert by_name["no_attention"] < by_name["causal"] < by_name["nonembedding"] < by_name["palm"]
    assert use["flops_by_convention"]["nonembedding"] == PER_TOKEN * tokens


@pytest.mark.parametrize(
    ("run", "word"),
    [
        ({"peak_flops": 989e9}, "data sheet has 9.89e"),
        ({"tokens_per_step": 10**9}, "ranks recorded 16,384"),
        ({"device_name": "CPU x", "peak_flops": 1e9, "peak_source": "measured"}, "peak is likely"),
    ],
    ids=["tera", "tokens", "measured"],
)
def test_above_the_peak_is_refused_with_the_likely_input(run, word):
    """An MFU of 2232 would be printed, and pass a gate."""
    result = run_of(**{"tokens_per_step": 16384, **run})
    assert result.utilization.mfu is None
    assert result.metrics["mfu"] is None
    assert set(result.utilization.mfu_by_convention.values()) == {None}
    reason = str(result.utilization.unknown_because)
    assert "impossible" in reason
    assert word in reason
    verdicts = check(result, (Budget(metric="mfu", min=0.42),))
    assert exit_code(verdicts) == 2
    assert min(bar.frac for bar in result.waterfall) >= 0


def test_tokens_that_the_ranks_recorded_stand_in_for_stated_ones():
    """MFU would be unknown although every rank says how much it trained on."""
    result = run_of()
    assert result.utilization.flops_per_step == PER_TOKEN * 4 * 4096


def test_a_peak_of_sparse_matrices_is_said():
    """MFU would be half of what it is, and nobody would know why."""
    tokens = possible_tokens(run_of(), 0.4)
    result = run_of(tokens_per_step=tokens, peak_flops=1979e12)
    assert any("twice the dense peak" in limit for limit in texts(result.limits))


def test_sizes_that_contradict_the_parameters_are_said():
    """A model with a wrong field would have a wrong MFU in silence."""
    model = json.dumps({**MODEL, "parameters": 13_000_000_000})
    found = known_model({"model": model})
    assert "8,030,261,248" in str(found.notes[0])
    assert not known_model({"model": json.dumps({**MODEL, "parameters": 8_030_261_248})}).notes


@pytest.mark.parametrize(
    ("sizes", "flops"),
    [
        ((16, 2048, 32, 8192, 128256, 8192, 1_235_814_400), 10_635_706_368),
        ((28, 1024, 16, 3072, 151936, 8192, 596_049_920), 9_213_050_880),
        ((12, 768, 12, 3072, 50257, 1024, 124_439_808), 854_438_400),
        ((32, 4096, 32, 14336, 32000, 4096, 46_702_792_704), None),
    ],
    ids=["tied", "wide heads", "gpt2", "experts"],
)
def test_parameters_tell_what_older_captures_leave_open(sizes, flops):
    """A tied model would have 0.6 of its FLOPs, one with experts 3.4 times as many."""
    names = ("num_layers", "hidden_size", "num_heads", "ffn_size", "vocab_size", "seq_len")
    found = known_model(dict(zip((*names, "parameters"), sizes, strict=True)))
    if flops is None:
        assert found.model is None
        assert "experts" in str(found.unknown_because)
    else:
        assert flops_per_token(found.model) == flops


def recomputing(again_ns):
    """Return a rank that computes a part of its forward pass again before the backward."""
    spans, start = [], 0
    for kind, dur in (("forward", 30 * MS), ("recompute", again_ns), ("backward", 60 * MS)):
        spans.append({"kind": kind, "start_ns": start, "dur_ns": dur, "microbatch": 0})
        start += dur
    run = {"world_size": 1, "model": json.dumps(MODEL), "device_name": H100, "tokens_per_step": 512}
    return diagnose(trace_of(run=run, span=spans, step=[{"start_ns": 0, "dur_ns": 200 * MS}]))


@pytest.mark.parametrize(("again_ns", "factor"), [(30 * MS, 4 / 3), (15 * MS, 7 / 6), (0, None)])
def test_hfu_holds_what_is_computed_again(again_ns, factor):
    """HFU would be unknown wherever activations are recomputed."""
    use = recomputing(again_ns).utilization
    assert use.mfu is not None
    assert use.hfu == (None if factor is None else pytest.approx(factor * use.mfu))


def test_packed_documents_count_by_their_real_lengths():
    """Attention across documents, which nobody computes, would be in MFU."""
    # What is recorded of a microbatch again takes the place of the first.
    rows = [{"microbatch": 0, "tokens": 4096, "sum_sq": 1}]
    rows += [{"microbatch": 0, "tokens": 8192, "sum_sq": 2 * 4096**2}]
    run = {
        "world_size": 1,
        "model": json.dumps(MODEL),
        "device_name": H100,
        "tokens_per_step": 8192,
    }
    steps = [{"start_ns": 0, "dur_ns": 1000 * MS}]
    spans = [{"kind": "forward", "start_ns": 0, "dur_ns": 999 * MS}]
    packed = diagnose(trace_of(run=run, span=spans, step=steps, microbatch=rows)).utilization
    whole = diagnose(trace_of(run=run, span=spans, step=steps)).utilization
    less = (whole.flops_per_step - packed.flops_per_step) / 8192
    assert less == pytest.approx(12 * 32 * 4096 * 4096)
