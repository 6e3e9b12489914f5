"""Arithmetic of operators from their shapes, against hand and against torch's own counter."""

import pytest

from meshscope.analyze.formulas.operator_flops import element_type, operator_flops
from meshscope.analyze.read.kineto.input_shapes import _IS_CAUSAL

Q, K, V = "bf16[2,8,64,16]", "bf16[2,8,96,16]", "bf16[2,8,96,32]"
FORWARD = 2 * 2 * 8 * 64 * 96 * (16 + 32)
BACKWARD = 2 * 2 * 8 * 64 * 96 * (3 * 16 + 2 * 32)


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("aten::mm", "f32[3,5] f32[5,7]", 2 * 3 * 5 * 7),
        ("aten::addmm", "bf16[7] bf16[3,5] bf16[5,7]", 2 * 3 * 5 * 7),
        ("aten::bmm", "f16[4,3,5] f16[4,5,7]", 2 * 4 * 3 * 5 * 7),
        ("aten::baddbmm", "f16[4,3,7] f16[4,3,5] f16[4,5,7]", 2 * 4 * 3 * 5 * 7),
        ("aten::_scaled_mm", "f8e4m3[3,5] f8e4m3[5,7] f32[] f32[]", 2 * 3 * 5 * 7),
        ("aten::linear", "bf16[2,3,5] bf16[7,5]", 2 * 2 * 3 * 5 * 7),
        ("aten::_scaled_dot_product_flash_attention", f"{Q} {K} {V}", FORWARD),
        ("aten::_scaled_dot_product_flash_attention_backward", f"{Q} {Q} {K} {V}", BACKWARD),
        ("aten::_flash_attention_forward", "f16[2,64,8,16] f16[2,64,8,16] f16[2,64,8,16] causal",
         2 * 2 * 8 * 64 * 64 * 16),
    ],
)  # fmt: skip
def test_formulas_by_hand(name, shapes, flops):
    """Fails when a product or an attention counts other arithmetic than it does."""
    assert operator_flops(name, shapes) == flops


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::add", "f32[3,5] f32[3,5]"),
        ("aten::mm", "f32[3,5] f32[6,7]"),
        ("aten::mm", ""),
        ("aten::linear", "f32[3]"),
        ("aten::_flash_attention_forward", "f16[128,8,16] f16[128,8,16] f16[128,8,16] i32[3]"),
        ("aten::_flash_attention_forward", "f16[2,64,8,16] f16[2,96,8,16] f16[2,96,8,16] causal"),
    ],
)
def test_what_shapes_do_not_tell_is_not_known(name, shapes):
    """Fails when packed sequences, a cut mask or a damaged trace give a made-up speed."""
    assert operator_flops(name, shapes) is None


def test_the_element_type_is_that_of_the_matrices():
    """Fails when the peak of one precision is held against products of another."""
    assert element_type("f32[7] bf16[3,5] bf16[5,7]") == "bf16"
    assert element_type("i64[3]") == ""


def test_torch_counts_the_same():
    """Fails when a formula differs from torch's flop counter."""
    counter = pytest.importorskip("torch.utils.flop_counter")
    heads_first = [(2, 8, 64, 16), (2, 8, 96, 16), (2, 8, 96, 16)]
    ours = operator_flops("aten::_scaled_dot_product_flash_attention", _text(heads_first))
    assert ours == counter.sdpa_flop_count(*heads_first)
    gradient = [heads_first[0], *heads_first]
    ours = operator_flops("aten::_scaled_dot_product_flash_attention_backward", _text(gradient))
    assert ours == counter.sdpa_backward_flop_count(*gradient)
    assert operator_flops("aten::bmm", _text([(4, 3, 5), (4, 5, 7)])) == counter.bmm_flop(
        (4, 3, 5), (4, 5, 7)
    )


@pytest.mark.parametrize("name", sorted(_IS_CAUSAL))
def test_the_mask_is_where_torch_has_it(name):
    """Fails when another input than the mask decides whether half of an attention is masked."""
    torch = pytest.importorskip("torch")
    operator = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if operator is None:
        pytest.skip(f"this torch has no {name}")
    argument = operator.default._schema.arguments[_IS_CAUSAL[name]].name
    assert argument in ("is_causal", "custom_mask_type")


def _text(shapes):
    return " ".join(f"bf16[{','.join(map(str, sizes))}]" for sizes in shapes)
