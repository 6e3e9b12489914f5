"""What is faster while a cause is there belongs to its price: a repair takes it back."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from tests.messages import of_code, values_of
from tests.synthetic import MS, Job, capture, capture_of

from meshscope.analyze.explain.causes import side_effects
from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import SpanKind

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
    assert values_of(found.evidence, "cause.relief")["relief_ns"] == cause.relief_ns


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


def noisy_job(spikes, noise):
    """Return a job of 60 steps as ``late_rank`` with noise, and what repairing rank 2 returns without it.

    Args:
        spikes: By how much the work of a rank in a step is longer, a factor.
        noise: Standard deviation of each pass, as a share of it.
    """
    job = Job(layout=ParallelLayout(dp=4), steps=60, microbatches=4)
    factor = 1 + noise * np.random.default_rng(0).standard_normal((2, 4, 60, 4))

    def work(rank, step):
        usual = USUAL if not is_late(step) else SLOW if rank == 2 else RELIEVED
        return usual * spikes(rank, step)

    def repaired(rank, step):
        return USUAL if rank == 2 and spikes(0, step) == 1 else USUAL * spikes(rank, step)

    trace = capture(
        job,
        lambda kind, rank, step, microbatch: int(
            work(rank, step) * factor[int(kind == SpanKind.FORWARD), rank, step, microbatch]
        ),
    )
    now, then = (
        sum(max(own(rank, step) for rank in range(4)) for step in range(1, 60))
        for own in (work, repaired)
    )
    return trace, 1 - then / now


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(
    ("spikes", "within"),
    [
        (lambda rank, step: 1, 0.015),
        (lambda rank, step: 0.84 if (rank, step) == (2, 34) else 1, 0.015),
        (lambda rank, step: 4 if (rank, step) == (2, 34) else 1, 0.015),
        (lambda rank, step: 3 if rank == 1 and step in (25, 37) else 1, 0.03),
        (lambda rank, step: 3 if step == 32 else 1, 0.015),
        (lambda rank, step: 4 if rank < 2 and step == 10 + 7 * rank else 1, 0.03),
        (lambda rank, step: 4 if rank < 2 and step in (10, 40) else 1, 0.03),
    ],
    ids=["none", "half slow", "very slow", "another rank", "all ranks", "two ranks", "together"],
)
def test_a_few_bad_steps_do_not_part_the_headline_from_its_evidence(spikes, within, noise):
    """One step of 59 vetoed the correction: 44 % was told above evidence of 36 %."""
    trace, truth = noisy_job(spikes, noise)
    found = next(own for own in diagnose(trace).findings if own.kind == "straggler_rank")
    assert found.where["rank"] == 2
    assert found.removal_gain_frac == pytest.approx(truth, abs=within)
    least, most = shown_range(found.evidence)
    assert least - 0.01 <= found.removal_gain_frac <= most + 0.01


def shown_range(evidence):
    """Return the least and the most of what evidence says of slow steps, two errors included."""
    shown = values_of(evidence, "straggler_rank.slow_steps_share")
    ends = [
        (fact["low"], fact["high"]) for fact in of_code(evidence, "straggler_rank.slow_steps_range")
    ]
    least, most = ends[0] if ends else (shown["share"], shown["share"])
    return least - 2 * shown["error"], most + 2 * shown["error"]


@pytest.mark.parametrize("seed", range(4))
def test_headline_truth_and_evidence_agree_whichever_steps_are_slow_or_bad(seed):
    """One bad step moved what the slow steps show by 11 % of the step, away from headline and truth."""
    draw = np.random.default_rng(seed)
    one, other = map(int, draw.choice(range(3, 57), 2, False))
    bad = {(rank, one) for rank in range(4)} if seed % 2 else {(1, one)}
    bad |= {(1, other)}
    trace, truth = noisy_job(lambda rank, step: 4 if (rank, step) in bad else 1, 0.02)
    found = next(own for own in diagnose(trace).findings if own.kind == "straggler_rank")
    least, most = shown_range(found.evidence)
    assert found.removal_gain_frac == pytest.approx(truth, abs=0.04)
    assert least - 0.03 <= found.removal_gain_frac <= most + 0.03
    assert least - 0.02 <= truth <= most + 0.02
    assert most - least < 0.14


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
            is_shorter = is_short and tokens is not None and tokens > 0
            ops.append(("end", step, tokens // 2 if is_shorter else tokens))
        programs.append(ops)
    return capture_of(JOB, programs)


@pytest.mark.parametrize(
    ("tokens", "more_kinds"), [(4096, False), (-1, True), (-1, False), (None, True)], ids=str
)
def test_steps_of_another_kind_are_no_measure(tokens, more_kinds):
    """A rank that is slow in the short steps of a job with two kinds would cost nothing."""
    result = diagnose(unlike_steps(tokens, more_kinds))
    gain = cause_of(result).removal_gain_frac * result.step_time_ns
    assert gain == pytest.approx(4 * MS * late_share(result, lambda step: step % 2), rel=CLOSE)


@pytest.mark.parametrize("unknown", ["everywhere", "on one rank", "in some steps"])
def test_tokens_that_are_not_known_count_as_usual(unknown):
    """An integer column without values makes masks that are neither true nor false."""
    trace = late_rank(RELIEVED)
    steps = trace.frame("step").copy()
    hit = {"everywhere": steps["rank"] >= 0, "on one rank": steps["rank"] == 1}
    steps.loc[hit.get(unknown, steps["step"] % 3 == 1), "tokens"] = None
    table = TABLES["step"].conform(pa.Table.from_pandas(steps, preserve_index=False))
    changed = diagnose(trace.with_tables({"step": table}))
    expected = diagnose(trace)
    assert cause_of(changed).relief_ns == pytest.approx(cause_of(expected).relief_ns)
    assert cause_of(changed).share_frac == pytest.approx(cause_of(expected).share_frac)


def test_causes_that_take_turns_are_not_held_against_the_few_steps_without_either():
    """Four bad steps would stand for the usual ones, and the price of a slow rank would fall to half."""
    with_it = np.arange(20) % 2 == 0
    in_turn = ~with_it & ~np.isin(np.arange(20), (3, 9, 11, 17))
    apart = np.arange(20) % 4 == 0
    costly, cheap, other = (
        side_effects._Parted(steps, np.ones(20, dtype=bool), cost)
        for steps, cost in ((with_it, 9e6), (in_turn, 1e3), (apart, 5e6))
    )
    assert side_effects._separated({0: cheap, 3: costly}) == {3: costly}
    assert list(side_effects._separated({0: cheap, 3: costly, 5: other})) == [3, 5]
    assert list(side_effects._separated({1: costly, 2: other})) == [1, 2]
