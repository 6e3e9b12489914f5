"""Model FLOPs against figures worked out from the formulas by hand."""

import pytest

from meshscope.analyze.formulas.flops import ModelShape, flops_per_token, model_shape

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
