"""A part that is read by its chosen steps alone: the same tables and limits as of the whole part, thinned."""

import pytest
from tests.recorded_steps import KINDS, STEPS, record
from tests.texts import texts

from meshscope.probe.reader import chosen_steps, rank_records
from meshscope.probe.reader.run import read_run
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.recording.record_heads import span_head
from meshscope.probe.schema.manifest import part_directories
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.segment import segment_paths

CHOICES = {
    "asked for": Wanted(steps=(10, 14), most_rows=30),
    "spread over all": Wanted(most_rows=60),
    "spread over some": Wanted(steps=(4, 31), most_rows=40),
    "no more than must be": Wanted(most_rows=1),
    "none": Wanted(steps=(900, 999), most_rows=1),
}


@pytest.fixture
def run(tmp_path):
    """Return a new run."""
    return create_run(tmp_path, "run", {"world_size": 2})


def both(run, wanted, monkeypatch):
    """Read a run whole and thin it, and by its chosen steps; return both, and how the second was read."""
    monkeypatch.setattr(chosen_steps, "ROW_BYTES", 1e12)
    whole = read_run(run, wanted)
    monkeypatch.setattr(chosen_steps, "ROW_BYTES", 0)
    return whole, read_run(run, wanted)


def assert_same(found, expected):
    """Compare what was read to the last bit, and what is said of it."""
    assert found.tables.keys() == expected.tables.keys()
    for name, table in expected.tables.items():
        assert found.tables[name].equals(table), name
    assert texts(found.limits) == texts(expected.limits)
    assert found.rank_manifests == expected.rank_manifests
    assert found.last_seen == expected.last_seen
    assert found.is_whole == expected.is_whole


def damage(run):
    """Flip a byte in the middle of a segment."""
    for own in part_directories(run)[0].values():
        path = next(iter(segment_paths(own).values()))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", KINDS)
def test_chosen_steps_are_those_of_the_whole_part(run, kind, choice, monkeypatch):
    """Fails when a limit of memory changes an account: by what reaches into a step, by samples, by what is lost."""
    KINDS[kind](run)
    whole, chosen = both(run, CHOICES[choice], monkeypatch)
    assert_same(chosen, whole)


@pytest.mark.parametrize("choice", CHOICES)
def test_damage_is_stated_as_of_the_whole_part(run, choice, monkeypatch):
    """Fails when lost records and torn blocks are forgotten in the steps that are left out."""
    record(run, flush=8)
    damage(run)
    whole, chosen = both(run, CHOICES[choice], monkeypatch)
    assert_same(chosen, whole)
    said = " ".join(texts(whole.limits))
    assert "damaged" in said, said


def test_a_part_without_room_unpacks_its_own_blocks_again(run, monkeypatch):
    """Fails when the records of all steps are held at once: the process would be killed."""
    record(run)
    decoded, decode = [], rank_records.decode_records
    monkeypatch.setattr(
        rank_records, "decode_records", lambda one: decoded.append(one) or decode(one)
    )
    read_run(run)
    of_all = len(decoded)
    decoded.clear()
    monkeypatch.setattr(chosen_steps, "ROW_BYTES", 0)
    read_run(run, Wanted(steps=(10, 11), most_rows=30))
    assert of_all >= STEPS // 3
    # Once to learn where steps lie; then those of two steps, of one beside, and of what is waited for late.
    assert len(decoded) - of_all <= of_all / 2


def test_records_that_a_live_writer_adds_meanwhile_are_left_for_the_next_look(run, monkeypatch):
    """Fails when records of steps that the first reading has not seen end look as if a rank stood in a step."""
    recorder = record(run, close=False)
    found = read_run(run, Wanted(steps=(10, 14), most_rows=30))
    read = chosen_steps.read_rank

    def reads(*given):
        if len(given) == 3 and not isinstance(given[2], chosen_steps.StepIndex):
            recorder.record_span(span_head(0, 0, 0), 10**9, 5, 5, 0)
            recorder.flush()
        return read(*given)

    monkeypatch.setattr(chosen_steps, "ROW_BYTES", 0)
    monkeypatch.setattr(chosen_steps, "read_rank", reads)
    meanwhile = read_run(run, Wanted(steps=(10, 14), most_rows=30))
    assert meanwhile.tables["span"].equals(found.tables["span"])
