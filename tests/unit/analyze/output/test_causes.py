"""Which causes are shown, in reports and on pages alike."""

from dataclasses import replace

from meshscope.analyze import diagnose
from meshscope.analyze.output.causes import shown_causes, waiting_sum
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout


def test_causes_without_cost_are_not_shown():
    """Rows of zeros would stand beside the one cause that matters."""
    fault = parse_fault("slow_rank:rank=3,factor=1.5")
    result = diagnose(generate(SyntheticJob(layout=ParallelLayout(tp=2, dp=2), faults=(fault,)))[0])
    slow = shown_causes(result)[0]
    nothing = replace(slow, share_frac=0.0, removal_gain_frac=4e-5)
    lost = replace(slow, share_frac=0.0, removal_gain_frac=-0.01)
    assert shown_causes(replace(result, causes=(nothing, slow, lost))) == [slow, lost]
    assert waiting_sum(replace(result, waiting=None)) is None
