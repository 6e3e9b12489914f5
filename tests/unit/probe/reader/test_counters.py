"""Counters of the probe: each says what it means for a number, or that it changes none."""

import ast
from string import Formatter

import pytest

from meshscope.analyze.load.recorded import worded
from meshscope.analyze.wording.limits import Meaning, limit_texts, limits_to_json, meaning_of
from meshscope.analyze.wording.message import catalogue
from meshscope.probe.reader.counters import COUNTERS, HARMLESS, counter_notes
from meshscope.probe.reader.rank_records import Made, RankRecords
from meshscope.probe.reader.sources import SOURCES
from meshscope.probe.schema import host_records

COUNTING = ("count", "_count")


def _counted(project_dir):
    """Yield the name of every counter that the probe counts, and the file of it."""
    for path in sorted((project_dir / "probe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in COUNTING
            key = node.args[0] if is_call and node.args else None
            if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "_losses":
                key = node.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, path


def test_every_counter_of_a_rank_has_its_sentence(project_dir):
    """Fails when a counter is added and nobody says what it means for a number."""
    names = {name for name, path in _counted(project_dir) if "agent" not in path.parts}
    assert {"communication_end_unseen", "ring_overwritten_dropped", "disk_floor_dropped"} <= names
    assert names == COUNTERS.keys() | HARMLESS


def test_every_counter_of_an_agent_has_its_sentence(project_dir):
    """Fails when an agent counts what no reader of its samples can understand."""
    own = {name for name, path in _counted(project_dir) if "agent" in path.parts}
    series = {name for name, path in _counted(project_dir) if path.stem == "segment_series"}
    assert own | series == host_records.LOST.keys() | host_records.HARMLESS


def test_every_source_has_its_words(project_dir):
    """Fails when a source of the probe is added and a limit calls it by the name in the code."""
    made = {
        node.args[0].value
        for path in sorted((project_dir / "probe").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "source"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert {"compute", "steps"} <= made <= set(SOURCES)
    assert {f"{part}.{name}" for part in ("source", "effect") for name in SOURCES} <= set(
        catalogue()
    )


@pytest.mark.parametrize("counter", sorted(COUNTERS))
def test_a_sentence_names_what_the_counter_gives(counter):
    """Fails when a sentence names a value that the counter lacks: whoever reads it gets a traceback."""
    meaning = COUNTERS[counter]
    names = {name for _, name, _, _ in Formatter().parse(catalogue()[meaning.code]) if name}
    assert {"who", "amount"} <= names <= {"who", "amount", *(["total"] if meaning.among else [])}


def said(counters, *, operations=10_000, records=100_000):
    """Return the limits of two ranks with these counters."""
    made = Made(counters, records, operations)
    return worded(counter_notes([RankRecords(rank, made=made) for rank in (0, 1)]))


def test_a_counter_says_what_number_may_be_wrong():
    """Fails when a limit gives the name of a counter instead of what it means."""
    assert limit_texts(said({"late_ends_dropped": 300})) == [
        "600 of 20,000 communication operations on ranks 0 and 1 ended after their step was summed. "
        "Waiting in sums is that much too low."
    ]


@pytest.mark.parametrize(
    "counters",
    [{"late_ends_dropped": 9}, {"record_errors": 99}, {"flush_timeouts": 7}, {"of_later": 1}],
    ids=str,
)
def test_what_changes_no_number_is_in_json_only(counters):
    """Fails when a reader has to judge a counter that is below the rounding, or a program does not see it."""
    (limit,) = limits = said(counters)
    assert meaning_of(limit) is Meaning.COUNTED
    form = limits_to_json(limits)
    assert form["limits"] == []
    ((name, amount),) = counters.items()
    (kept,) = form["limit_messages"]
    assert (kept["values"]["counter"], kept["values"]["amount"]) == (name, 2 * amount)


def test_an_error_of_a_source_says_what_it_hides():
    """Fails when a limit counts errors of a hook without their effect."""
    (limit,) = said({"compute_errors": 2})
    assert str(limit) == (
        "4 errors while recording passes on ranks 0 and 1: the time of unseen passes counts as idle"
    )
