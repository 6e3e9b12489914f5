"""Why a repair returns little is said as it is."""

import pytest

from meshscope.analyze.findings.rules.grading import by_certainty, hidden_facts
from meshscope.analyze.tables.results import Cause, Finding, Hiding
from meshscope.probe.schema.terms import FindingKind, Severity

HIDDEN = ["Hidden by straggler rank (rank 7): fixing both gains 5.0 %"]


def cause(share, gain):
    """Return a slow rank with this share and removal gain."""
    return Cause(
        kind="straggler_rank",
        where={"rank": 1},
        share_frac=share,
        removal_gain_frac=gain,
        direct_ns=0.0,
        induced_wait_ns=0.0,
        hidden_by=Hiding("straggler_rank", {"rank": 7}, 0.05),
    )


@pytest.mark.parametrize(
    ("share", "gain", "facts"),
    [
        (0.05, 0.03, []),
        (0.04, 0.0001, HIDDEN),
        (0.04, -0.01, HIDDEN),
        (0.04, 0.0084, HIDDEN),
        (0.0101, 0.0099, []),
        (0.0002, 0.0, ["No gain: nothing waits for this place, it has slack"]),
    ],
)
def test_only_what_others_hide_is_called_hidden(share, gain, facts):
    """Fails when a rank that nothing hides, or that returns something, is reported as hidden."""
    assert [str(fact) for fact in hidden_facts(cause(share, gain))] == facts


@pytest.mark.parametrize(
    ("cost", "confidence", "kind", "grade"),
    [
        (0.30, 0.6, FindingKind.SLOW_WIRE, "critical"),
        (0.06, 0.6, FindingKind.SLOW_WIRE, "warning"),
        (0.30, 0.4, FindingKind.STRAGGLER_RANK, "warning"),
        (0.06, 0.4, FindingKind.STRAGGLER_RANK, "warning"),
        (None, 0.6, FindingKind.HANG, "critical"),
        (None, 0.9, FindingKind.CLOCK_SKEW, "critical"),
    ],
)
def test_severity_follows_cost_and_certainty(cost, confidence, kind, grade):
    """Someone would be woken for a guess, or a large loss would be reported as a remark."""
    finding = Finding(
        kind=kind,
        severity=Severity.CRITICAL,
        claim="x",
        where={},
        evidence=(),
        remedy="x",
        confidence=confidence,
        cost_frac=cost,
        removal_gain_frac=None,
    )
    assert by_certainty(finding).severity == grade
