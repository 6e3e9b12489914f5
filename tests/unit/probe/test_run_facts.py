"""What is learned of a job piece by piece, as its manifest holds it."""

import pytest

from meshscope.probe.identity import Identity
from meshscope.probe.run_facts import RunFacts
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import MANIFEST_NAME, read_json

MESH = ParallelLayout(pp=2, dp=2)


@pytest.fixture
def facts(tmp_path):
    """Return the facts of rank 0 of four, with a run directory."""
    found = RunFacts()
    found.open(tmp_path, Identity(rank=0, world_size=4))
    return found


def layout_in(tmp_path):
    """Return the layout that the manifest holds."""
    return ParallelLayout.from_json(read_json(tmp_path / MANIFEST_NAME)["layout"])


def test_chunks_join_the_mesh_in_either_order(tmp_path, facts):
    """Fails if an interleaved schedule is held against the bubble of one chunk a rank."""
    facts.learn({"layout": ParallelLayout(dp=4).to_json()})
    facts.learn_chunks(2)
    assert layout_in(tmp_path) == ParallelLayout(dp=4, vpp=2)
    facts.learn({"layout": MESH.to_json()})
    assert layout_in(tmp_path) == ParallelLayout(pp=2, dp=2, vpp=2)


def test_chunks_without_a_mesh_make_none(tmp_path, facts):
    """Fails if a job whose mesh is unknown gets one of a single rank."""
    facts.learn_chunks(2)
    assert not read_json(tmp_path / MANIFEST_NAME).get("layout")


def test_a_stated_layout_stays(tmp_path, facts):
    """Fails if what the user states is overruled by what is learned."""
    facts.add({"layout": MESH})
    facts.learn({"layout": ParallelLayout(tp=4).to_json()})
    facts.learn_chunks(2)
    assert layout_in(tmp_path) == MESH
