"""When a rank is slow, in words that hold for the steps after it too."""

import pytest
from tests.messages import of_code, values_of
from tests.synthetic import MS, Job, capture

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout


def straggler(is_slow):
    """Return the finding on rank 2 of four, 30 % slower in some of the steps 1 to 20."""

    def work(kind, rank, step, microbatch):
        return int((1.3 if rank == 2 and is_slow(step) else 1.0) * 20 * MS)

    result = diagnose(capture(Job(layout=ParallelLayout(dp=4), steps=21), work))
    (found,) = (finding for finding in result.findings if finding.kind == "straggler_rank")
    assert found.where["rank"] == 2
    return found


@pytest.mark.parametrize(
    ("is_slow", "words"),
    [
        (lambda step: step % 2 == 1, "Slow in 10 of 20 steps, last in step 19"),
        (lambda step: step % 2 == 0, "Slow in 10 of 20 steps, last in step 20"),
        (
            lambda step: step in {2, 3, 5, 8, 9, 12, 14, 15, 18},
            "Slow in 9 of 20 steps, last in step 18",
        ),
        (lambda step: 5 <= step <= 10, "Back to normal after step 10"),
        (lambda step: step >= 12, "Slow from step 12 to the last step"),
        (lambda step: True, "Slow in all analysed steps"),
    ],
    ids=["odd", "even", "now and then", "a while", "from one on", "all"],
)
def test_a_break_is_no_end(is_slow, words):
    """Fails when a rank that is slow in every second step counts as healthy because the last one was."""
    found = straggler(is_slow)
    assert words in [str(fact) for fact in found.evidence]
    assert bool(of_code(found.evidence, "straggler_rank.over")) == words.startswith(
        "Back to normal"
    )
    against = values_of(found.evidence, "straggler_rank.interval")["against"]
    assert against.code == "straggler_rank.against_peers"
