"""The reasons of a gate: sentences, and their codes and values."""

from meshscope.analyze.gate.results import Check, Reason, Verdict
from meshscope.analyze.gate.words import metric_label, why
from meshscope.analyze.wording.message import message_to_json

SLOWER = Check(
    metric="step_p50",
    verdict=Verdict.FAIL,
    reason=Reason.SLOWER,
    ratio=1.024,
    low=1.019,
    high=1.029,
    margin_frac=0.01,
    before=500e6,
    after=512e6,
)


def test_a_reason_is_a_sentence_with_its_numbers():
    """A reader of the log would not see by how much the step is slower."""
    assert str(why(SLOWER)) == (
        "500.000 → 512.000 ms, +2.40 % [+1.90 %, +2.90 %]; above the margin of 1.00 %"
    )


def test_a_reason_is_a_code_with_values():
    """A program would have to take the margin out of a sentence."""
    found = message_to_json(why(SLOWER))
    assert found["code"] == "gate.slower"
    assert found["values"]["margin"] == 0.01
    assert found["values"]["change"]["values"]["after_ns"] == 512e6


def test_a_new_time_has_no_margin():
    """The sentence would end in a margin that nobody knows."""
    check = Check(
        metric="class.checkpoint",
        verdict=Verdict.FAIL,
        reason=Reason.SLOWER,
        before=0.0,
        after=5e6,
        step_frac=0.012,
    )
    assert str(why(check)) == "0.000 → 5.000 ms, new (+1.20 % of the step)"


def test_a_count_names_axis_and_kind():
    """Two counts of different axes would read the same."""
    assert str(metric_label("count.bytes.dp.all_reduce")) == "DP all_reduce bytes per step"
    assert str(metric_label("count.passes.weight_gradient")) == "weight gradient passes per step"
