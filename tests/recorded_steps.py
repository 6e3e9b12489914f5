"""Parts of a rank with all that makes it hard to read some of its steps alone."""

from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.records import LEVEL_CODES, SPAN_CODES
from meshscope.probe.schema.terms import CaptureLevel, SpanKind

STEPS = 42
STEP_NS = 1000
ALL = FullRecords(first_steps=0, every_steps=1)
FAR = 8
"""Steps after which one operation is waited for, and through which one span goes on."""
FORWARD, BACKWARD, SAVE = (
    SPAN_CODES[kind.value] for kind in (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.CHECKPOINT)
)
LEVEL = LEVEL_CODES[CaptureLevel.COLLECTIVES]


def record_passes(recorder, place, at):
    """Record two passes of a step, what the device took for them, and their work."""
    for microbatch in range(2):
        kind = BACKWARD if microbatch else FORWARD
        begin = at + 5 + 400 * microbatch
        span = recorder.record_span(span_head(kind, 0, 0), begin, 300 + place, 5, microbatch)
        recorder.record_device_time(span, begin + 7, 290 + place)
        recorder.record_microbatch(microbatch, 100 + place, 1000 + place)


def record_communication(recorder, group, place, at, *, sends):
    """Record a message, if any, and a collective without its end; return the event of that."""
    event = recorder.issue_collective(collective_head(group, 0, -1), place, 64, at + 850)
    if sends:
        sent = recorder.issue_p2p(p2p_head(group, place % 2, 1, -1), place, 64, at + 900)
        recorder.complete(sent, at + 950, at + 910, at + 950)
    return event


def record(
    run,
    *,
    steps=STEPS,
    full=ALL,
    origin=0,
    every=1,
    flush=3,
    numbers=None,
    close=True,
    name="data",
    slots=64,
    sends_until=STEPS,
):
    """Record a part of rank 0: passes, communication that is waited for later and much later, work of microbatches.

    The collective of a step is waited for in the next one, that of step 20 ``FAR`` steps later, and a save of
    step 18 ends as much later. Only each so many steps communicate. Blocks do not end where steps do.
    """
    settings = StorageSettings(
        slot_count=slots, wake_s=3600.0, free_floor_frac=0.0, full_records=full
    )
    recorder = Recorder(run, 0, settings=settings)
    group = recorder.register_group("world", [0, 1], name)
    recorder.step, before, late = 0, None, None
    for place in range(steps):
        number, at = (numbers or range(steps))[place], origin + place * STEP_NS
        recorder.step = number
        record_passes(recorder, place, at)
        if place % flush == 0:
            recorder.flush()
        if place == 18 + FAR:
            recorder.step = number - FAR
            recorder.record_span(span_head(SAVE), at - FAR * STEP_NS + 10, FAR * STEP_NS + 20, 5)
            recorder.step = number
        if before is not None:
            recorder.complete(before, at + 320, at + 310, at + 320)
        before = None
        if (place + 1) % every == 0:
            sends = place < sends_until
            before = record_communication(recorder, group, place, at, sends=sends)
        if place == 20:
            late, before = before, None
        if place == 20 + FAR and late is not None:
            recorder.complete(late, at + 700, at + 330, at + 700)
        recorder.record_memory(0, allocated_bytes=10**9 if place == 17 else 1000 + place)
        recorder.record_step(number, at, STEP_NS, 10, LEVEL)
    recorder.step += 1
    recorder.record_span(span_head(FORWARD, 0, 0), origin + steps * STEP_NS + 5, 300, 5, 0)
    if close:
        recorder.close()
    else:
        recorder.flush()
        for microbatch in range(2):
            at = origin + steps * STEP_NS + 400 * (microbatch + 1)
            recorder.record_span(span_head(BACKWARD, 0, 0), at, 300, 5, microbatch)
        recorder.record_step(steps, origin + steps * STEP_NS, 2 * STEP_NS, 10, LEVEL)
    return recorder


def recorded_restart(run):
    """Record a job that was killed and began anew."""
    record(run, steps=25, close=False)
    record(run, origin=1_000_000)


KINDS = {
    "plain": record,
    "large blocks": lambda run: record(run, flush=20),
    "recording": lambda run: record(run, close=False),
    "thinned": lambda run: record(run, full=FullRecords(first_steps=5, every_steps=7)),
    "seldom synchronised": lambda run: record(run, every=5),
    "restarted": recorded_restart,
    "numbers left out": lambda run: record(run, numbers=[*range(15), *range(20, 11 + STEPS)]),
    "in the ring alone": lambda run: record(run, steps=14, slots=1024, flush=99, close=False),
}
