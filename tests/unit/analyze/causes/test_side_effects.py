"""What is faster while a cause is there belongs to its price: a repair takes it back."""

from functools import partial

import pytest
from tests.synthetic import MS, Job, capture, capture_of

from meshscope.analyze.diagnosis import diagnose
from meshscope.analyze.measure import measure
from meshscope.analyze.whatif import parse_changes, predict
from meshscope.probe.schema.layout import ParallelLayout

JOB = Job(layout=ParallelLayout(dp=4), steps=24, microbatches=4)
PASSES = 2 * JOB.microbatches
CLOSE = 2e-3
"""Analysed steps begin and end a little apart on the ranks."""
USUAL, SLOW, RELIEVED = 20 * MS, 30 * MS, 18 * MS


def is_late(step):
    """Return whether rank 2 is slow in a step: three of every six."""
    return step % 6 >= 3


def late_rank(relieved, late=is_late):
    """Return a job whose rank 2 is slow in some steps, in which its peers take another time."""
    return capture(
        JOB,
        lambda kind, rank, step, microbatch: (
            USUAL if not late(step) else SLOW if rank == 2 else relieved
        ),
    )


def late_share(result, late=is_late):
    """Return the share of the analysed steps in which rank 2 is slow."""
    steps = range(result.run["first_step"], result.run["last_step"] + 1)
    return sum(map(late, steps)) / len(steps)


def cause_of(result, kind="straggler_rank"):
    """Return the only cause of a kind."""
    (found,) = (cause for cause in result.causes if cause.kind == kind)
    return found


def test_a_repair_returns_no_more_than_the_slow_steps_are_longer():
    """Ranks that share cores with a late one are faster meanwhile, and the repair promises that too."""
    result = diagnose(late_rank(RELIEVED))
    cause = cause_of(result)
    longer = PASSES * (SLOW - USUAL) * late_share(result)
    assert cause.removal_gain_frac * result.step_time_ns == pytest.approx(longer, rel=CLOSE)
    assert cause.share_frac * result.step_time_ns == pytest.approx(longer, rel=CLOSE)
    relief_ns = PASSES * (USUAL - RELIEVED) * late_share(result)
    assert cause.relief_ns == pytest.approx(relief_ns, rel=CLOSE)
    (found,) = (own for own in result.findings if own.kind == "straggler_rank")
    assert any("which a repair takes back" in text for text in found.evidence)


def test_what_if_says_the_same():
    """The finding and the prediction of its repair would differ."""
    result = diagnose(late_rank(RELIEVED))
    predicted = predict(measure(late_rank(RELIEVED)), parse_changes(["rank=2"], []))
    saved_ns = predicted.measured_ns - predicted.predicted_ns
    assert saved_ns == pytest.approx(cause_of(result).removal_gain_frac * result.step_time_ns)


@pytest.mark.parametrize(
    ("relieved", "late", "relief_ns"),
    [
        (USUAL, is_late, pytest.approx(0, abs=1000)),
        (USUAL + 2 * MS, is_late, 0),
        (RELIEVED, lambda step: step >= 12, None),
        (RELIEVED, lambda step: True, None),
    ],
    ids=["alike", "slower", "once", "always"],
)
def test_what_does_not_show_is_not_taken_back(relieved, late, relief_ns):
    """A change of the job, or a burden on all ranks, would be charged to the rank's repair."""
    result = diagnose(late_rank(relieved, late))
    lost = PASSES * (SLOW - relieved) * late_share(result, late)
    gain = cause_of(result).removal_gain_frac * result.step_time_ns
    assert gain == pytest.approx(lost, rel=CLOSE)
    assert cause_of(result).relief_ns == relief_ns


def is_slow_in_turn(rank, step):
    """Return whether one of two ranks is slow, each in two of six steps."""
    return {0: 1, 1: 1, 3: 2, 4: 2}.get(step % 6) == rank


def test_ranks_that_are_slow_in_turn_are_priced_in_full():
    """Each would be compared with steps in which the other one is slow, and cost nothing."""
    trace = capture(
        JOB,
        lambda kind, rank, step, microbatch: SLOW if is_slow_in_turn(rank, step) else USUAL,
    )
    result = diagnose(trace)
    for cause in result.causes:
        if cause.kind == "straggler_rank":
            gain = cause.removal_gain_frac * result.step_time_ns
            is_slow = partial(is_slow_in_turn, cause.where["rank"])
            assert gain == pytest.approx(
                PASSES * (SLOW - USUAL) * late_share(result, is_slow), rel=CLOSE
            )
    assert [c.kind for c in result.causes if c.share_frac > 0.01] == ["straggler_rank"] * 2


def unlike_steps(tokens=4096, more_kinds=False):
    """Return a job whose steps are long and short in turn; rank 1 is slow in the short ones."""
    programs = []
    for rank in range(4):
        ops = []
        for step in range(32):
            is_short = step % 2 == 1
            work_ns = USUAL // 2 if is_short else USUAL
            slow_ns = 4 * MS if rank == 1 and is_short else 0
            group = ("dp-0", (0, 1, 2, 3))
            ops += [
                ("work", work_ns + slow_ns, step, "forward", 0, 0),
                ("work", 2 * work_ns, step, "backward", 0, 0),
                ("collective", step, group, "dp", "all_reduce", 1 << 20, MS // 10),
            ]
            if more_kinds and is_short:
                ops.append(("collective", step, group, "dp", "broadcast", 1 << 20, MS // 10))
            ops.append(("end", step, tokens // 2 if is_short and tokens > 0 else tokens))
        programs.append(ops)
    return capture_of(JOB, programs)


@pytest.mark.parametrize(
    ("tokens", "more_kinds"), [(4096, False), (-1, True), (-1, False)], ids=str
)
def test_steps_of_another_kind_are_no_measure(tokens, more_kinds):
    """A rank that is slow in the short steps of a job with two kinds would cost nothing."""
    result = diagnose(unlike_steps(tokens, more_kinds))
    gain = cause_of(result).removal_gain_frac * result.step_time_ns
    assert gain == pytest.approx(4 * MS * late_share(result, lambda step: step % 2), rel=CLOSE)
