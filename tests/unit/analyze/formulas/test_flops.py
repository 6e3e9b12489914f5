"""Model FLOPs against figures worked out from the formulas by hand."""

import json

import pytest

from meshscope.analyze.formulas.flops import (
    ModelShape,
    conventions_of,
    flops_per_token,
    known_model,
    model_shape,
)
from meshscope.probe.schema.message import message, message_to_cell
from meshscope.probe.schema.model.fields import model_text

SHAPE = ModelShape(num_layers=2, hidden_size=8, seq_len=16, vocab_size=10, parameters=1000)
ATTENTION = 12 * 2 * 8 * 16


@pytest.mark.parametrize(
    ("convention", "flops"),
    [
        ("palm", 6 * 1000 + ATTENTION),
        ("nonembedding", 6 * (1000 - 80) + ATTENTION),
        ("causal", 6 * (1000 - 80) + ATTENTION / 2),
    ],
)
def test_each_convention(convention, flops):
    """MFU would be compared across conventions that differ by up to 1.7 x."""
    assert flops_per_token(SHAPE, convention) == flops


def test_llama_3_8b_at_8k_context():
    """The published 61.1 (PaLM) and 57.9 (without embedding) GFLOPs per token would not come out."""
    llama = ModelShape(
        num_layers=32, hidden_size=4096, seq_len=8192, vocab_size=128256, parameters=8_030_261_248
    )
    assert flops_per_token(llama, "palm") / 1e9 == pytest.approx(61.1, abs=0.05)
    assert flops_per_token(llama, "nonembedding") / 1e9 == pytest.approx(57.9, abs=0.06)


def test_an_unknown_convention_is_refused():
    """A typing error would give the figure of another convention."""
    with pytest.raises(KeyError):
        flops_per_token(SHAPE, "megatron")


def test_a_shape_with_an_unknown_part_is_no_shape():
    """A missing vocabulary size would count as zero."""
    known = {name: getattr(SHAPE, name) for name in ModelShape.__slots__}
    assert model_shape(known) == SHAPE
    assert model_shape({**known, "vocab_size": None}) is None
    assert model_shape({}) is None


SIZES = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "vocab_size": 512, "seq_len": 128}


def run_of(**fields):
    """Return the row of a run whose model has some fields beside its sizes."""
    axes = {name: fields.pop(name) for name in ("tp",) if name in fields}
    return {"model": json.dumps({**SIZES, **fields}), **axes}


def test_layers_that_run_in_a_loop_count_as_often():
    """Fails when a model that runs its layers three times has a third of its MFU."""
    head, layer = 512 * 64, 12 * 64 * 64
    looped = known_model(run_of(ran_products=float(head + 12 * layer), ran_layers=12.0))
    twelve = known_model({"model": json.dumps({**SIZES, "num_layers": 12})})
    for convention in ("nonembedding", "causal", "no_attention"):
        counted = flops_per_token(looped.model, convention)
        assert counted == flops_per_token(twelve.model, convention)
    assert [note.code for note in looped.notes] == ["counted.as_it_ran"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"frozen": True}, "lacks.frozen_weights"),
        ({"headless": True}, "lacks.output_head"),
        ({"varies": True, "frozen": True}, "lacks.like_steps"),
        ({"frozen": True, "ran_products": 1e5, "tp": 2}, "lacks.frozen_weights"),
        ({"frozen": True, "ran_products": 1e5, "ran_layers": 4.0}, ""),
        ({"mixed": True}, "lacks.attention_of_several"),
        ({"counted": True, "ran_products": 1e5}, "lacks.attention"),
        ({"seen_products": 1e5, "unseen_weights": 129376.0}, ""),
        ({"seen_products": 2e5, "unseen_weights": 129376.0}, "lacks.seen_like_sizes"),
    ],
    ids=[
        *("frozen", "no head", "random depth", "split", "frozen and seen", "two models"),
        *("no attention", "sizes fit", "sizes do not fit"),
    ],
)
def test_flops_that_sizes_do_not_tell_are_unknown(fields, code):
    """Fails when low-rank training has the MFU of full training."""
    known = known_model(run_of(**fields))
    assert getattr(known.unknown_because, "code", "") == code
    assert (known.model is None) == bool(code)


def test_a_model_that_no_formula_counts_says_why():
    """Fails when a user of another family is only told that the capture lacks the shape of the model."""
    refused = message_to_cell(message("refused.family_not_known", family="t5"))
    known = known_model({"model": model_text({}, {}, refused)})
    assert known.model is None
    assert known.unknown_because.code == "lacks.counted_model"
    assert "t5" in str(known.unknown_because)
    assert model_text({"num_layers": 2, "gated": True}, {}, refused) == model_text(
        {"num_layers": 2, "gated": True}
    )


def test_a_model_without_sizes_counts_as_it_ran():
    """Fails when a model of a family that is not known has no MFU although all that it multiplied was seen."""
    refused = message_to_cell(message("refused.encoder_decoder"))
    ran = {"ran_products": 100.0, "ran_attention": 20.0, "ran_keys": 8.0, "complete": True}
    known = known_model({"model": model_text(None, ran, refused)})
    assert known.model is None
    assert conventions_of(known.ran) == ("nonembedding", "no_attention")
    assert flops_per_token(known.ran) == 6 * 120.0
    assert flops_per_token(known.ran, keys_per_token=4.0) == 6 * 110.0


def test_passes_without_gradients_count_where_sizes_do():
    """Fails when a compiled policy that generates has the MFU of what it trains alone."""
    plain = known_model(run_of())
    known = known_model(run_of(forward_rows=1.5))
    assert flops_per_token(known.model) == 1.5 * flops_per_token(plain.model)
    assert [note.values["share"] for note in known.notes] == [pytest.approx(1 / 3)]


@pytest.mark.parametrize(
    ("ran", "axes", "code"),
    [
        ({"ran_products": 100.0, "complete": True}, {"pp": 2}, "lacks.counted_model"),
        ({"ran_products": 100.0}, {}, "lacks.counted_model"),
        ({"varies": True}, {}, "lacks.like_steps"),
        ({"uncounted": True}, {}, "lacks.counted_functions"),
        ({"partial": True}, {}, "lacks.all_passes"),
    ],
    ids=["a part of it", "kernels of others", "random depth", "functions", "passes"],
)
def test_a_model_without_sizes_that_was_not_all_seen_is_unknown(ran, axes, code):
    """Fails when what a part of a model multiplies is shown as the MFU of all."""
    refused = message_to_cell(message("refused.encoder_decoder"))
    known = known_model({"model": model_text({}, ran, refused), **axes})
    assert known.ran is None
    assert known.unknown_because.code == code


def test_experts_of_gathered_weights_have_no_window():
    """Fails when products with weights that are gathered for each token are cut as attention to a window is."""
    run = run_of(ran_products=1e5, ran_layers=4.0, ran_keys=128.0, ran_attention=1e6, window=16)
    assert flops_per_token(known_model(run).model) == 6 * (1e5 + 1e6)


def test_attention_counts_as_it_was_seen():
    """Fails when soft prompts, another model, or longer sequences than the first count by the sizes."""
    width, keys = 4 * 2 * 16, 4 * 64
    ran = {"ran_products": 1.0, "ran_layers": 4.0, "ran_keys": 64.0}
    for window, seen, expected in (
        (0, 1.0, width * keys),
        (0, 1.25, 1.25 * width * keys),
        (16, 1.0, width * 4 * 16),
        (16, 0.25, width * keys / 4),
    ):
        more = {**ran, "ran_attention": seen * width * keys, "window": window}
        model = known_model(run_of(**more)).model
        attention = flops_per_token(model) - flops_per_token(model, "no_attention")
        assert attention == pytest.approx(6 * expected), (window, seen)


def test_a_counted_model_of_which_nothing_was_seen_says_so():
    """Fails when a compiled model that runs in a loop has a low MFU, and nothing warns of it."""
    seen = {"ran_products": 229376.0, "ran_layers": 4.0, "ran_keys": 32.0, "ran_attention": 9e3}
    for more, codes in (
        ({}, ["assumed.counted_model", "assumed.runs_once"]),
        (seen, ["assumed.counted_model"]),
    ):
        known = known_model(run_of(counted=True, **more))
        assert [note.code for note in known.notes] == codes


@pytest.mark.parametrize(("tokens", "is_stated"), [(1_000_000, True), (None, False)])
def test_stated_sizes_and_tokens_go_before_passes_without_tokens(tokens, is_stated):
    """Fails when what a small part of a program multiplies in a step takes the place of the model that its user states."""
    run = {**run_of(ran_products=683.0, per_step=True, complete=True), "tokens_per_step": tokens}
    known = known_model(run)
    assert (known.model is not None, known.ran is None) == (is_stated, is_stated)
    if is_stated:
        plain = known_model({"model": json.dumps(SIZES)}).model
        assert flops_per_token(known.model, "causal") == flops_per_token(plain, "causal")
