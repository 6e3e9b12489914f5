"""What the user states wins over what was inferred, and contradictions stay visible."""

import tomllib
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.kineto_files import launched, step, write
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.align.topology.axes import with_axes
from meshscope.analyze.align.topology.file import load_topology
from meshscope.analyze.align.topology.kept import keep_topology, kept_topology, with_kept_topology
from meshscope.analyze.align.topology.stated import apply_topology
from meshscope.analyze.output.json import topology_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.text import topology_document
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.tables import TABLES

MEMBERS = [{"rank": rank, "start_ns": 0, "end_ns": 1} for rank in (0, 1)]


@pytest.fixture
def stated(tmp_path):
    """Return a function from the text of a topology file to what it states."""

    def read(text):
        path = tmp_path / "mesh.toml"
        path.write_text(text)
        return load_topology(path)

    return read


def four_ranks(**rows):
    """Return a capture of ranks 0 and 1 of four, with one group that nothing tells about."""
    group = [{"ranks": [0, 1]}]
    return trace_of(run={"world_size": 4}, ranks=(0, 1), group=group, collective=MEMBERS, **rows)


def test_the_layout_gives_the_axis_and_the_missing_size(stated):
    """Waits of an unnamed group would stay on no axis although the mesh is known."""
    trace = apply_topology(four_ranks(), stated("[layout]\ntp = 2"))
    assert (trace.layout.tp, trace.layout.dp, trace.run["world_size"]) == (2, 2, 4)
    assert trace.frame("collective")["axis"].tolist() == ["tp", "tp"]
    assert trace.frame("group")["axis"].tolist() == ["tp"]


def test_a_stated_group_wins_over_the_layout(stated):
    """The user could not correct a group, or the contradiction would be hidden."""
    text = '[layout]\ntp = 2\n[[group]]\nid = "g"\naxis = "dp"'
    trace = apply_topology(four_ranks(), stated(text))
    assert trace.frame("collective")["axis"].tolist() == ["dp", "dp"]
    assert trace.frame("group")["evidence"].tolist() == ['axis.stated {"source": "mesh.toml"}']
    assert any("members leave that axis" in limit for limit in texts(trace.limits))


def test_a_group_is_found_by_its_members_and_an_unknown_one_is_stated(stated):
    """A file that serves many captures would be refused, or a slip in an id pass unseen."""
    text = '[[group]]\nranks = [1, 0]\naxis = "ep"\n[[group]]\nid = "h"\naxis = "dp"'
    trace = apply_topology(four_ranks(), stated(text))
    assert trace.frame("group")["axis"].tolist() == ["ep"]
    assert any("group h" in limit and "it has: g" in limit for limit in texts(trace.limits))


def test_a_later_statement_replaces_an_earlier_inference(stated):
    """An axis that was inferred from traffic would survive a mesh that excludes it."""
    inferred = with_axes(trace_of(run={"world_size": 2}, group=[{}], collective=MEMBERS))
    assert inferred.frame("group")["axis"].tolist() == ["dp"]
    again = apply_topology(inferred, stated("[layout]\ntp = 2"))
    assert again.frame("group")["axis"].tolist() == ["tp"]


def test_kernels_count_as_stated(stated):
    """A library that no rule knows could not be distinguished from computation."""
    kernels = [
        {"name_id": name, "category": category, "start_ns": 0, "dur_ns": 5}
        for name, category in ((0, "compute"), (1, "unknown"), (1, "memcpy"), (2, "communication"))
    ]
    names = pa.table({"rank": [0, 0, 0], "name_id": [0, 1, 2], "name": ["gemm", "x_send", "y"]})
    trace = trace_of(kernel=kernels).with_tables({"name": TABLES["name"].conform(names)})
    text = '[kernels]\ncommunication = ["X_SEND"]\ncomputation = ["y"]'
    found = apply_topology(trace, stated(text))
    assert found.frame("kernel")["category"].tolist() == [
        "compute",
        "communication",
        "memcpy",
        "compute",
    ]
    assert any("1 kernel counted as communication" in limit for limit in texts(found.limits))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[layout]\ntp = 1\ndp = 1", "rank 1"),
        ("[layout]\ntp = 3", "does not divide the 4"),
        ("[layout]\ntp = 4\nep = 2", "does not divide dp x cp"),
        ('[[group]]\nid = "g"\nranks = [1, 2]', "leave out rank 0"),
    ],
)
def test_what_cannot_be_is_refused(stated, text, what):
    """Ranks would be put on places that the mesh does not have."""
    with pytest.raises(ConfigError, match=what) as raised:
        apply_topology(four_ranks(), stated(text))
    assert raised.value.remedy


def test_another_number_of_ranks_or_mesh_is_reported(stated):
    """A topology file of another job would be used without a word."""
    first = apply_topology(four_ranks(), stated("[layout]\ntp = 2"))
    second = apply_topology(first, stated("[layout]\npp = 2\ndp = 4"))
    assert second.run["world_size"] == 8
    assert any("8 ranks, the trace 4" in limit for limit in texts(second.limits))
    assert any("the trace shows TP2" in limit for limit in texts(second.limits))


def test_the_template_can_be_used_as_it_is(stated):
    """The file that we propose would be refused by our own reader."""
    group = [{"ranks": [0, 1], "group_id": 'odd "name"\n'}]
    trace = with_axes(trace_of(run={"world_size": 4}, ranks=(0, 1), group=group))
    result = topology_to_json(trace)
    assert result["layout"] is None
    assert tomllib.loads(result["template"])["group"][0]["id"] == 'odd "name"\n'
    known = topology_to_json(apply_topology(trace, stated(result["template"])))
    assert known["layout"]["dp"] == 4


def test_the_command_shows_layout_evidence_and_coordinates(stated):
    """A reader could not see why a group is on its axis."""
    mesh = stated("[layout]\ntp = 2")
    result = topology_to_json(apply_topology(four_ranks(), mesh), mesh)
    assert result["layout_evidence"] == "stated in mesh.toml"
    said = {"code": "axis.stated", "values": {"source": "mesh.toml"}}
    assert result["messages"]["layout_evidence"] == said
    assert result["groups"][0]["messages"]["evidence"]["code"] == "axis.by_layout"
    assert result["ranks"]["3"] == {"tp": 1, "pp": 0, "dp": 1, "cp": 0}
    text = to_plain(topology_document(result))
    assert "TP2 x PP1 x DP2 x CP1" in text
    assert "its members lie along this axis of the layout" in text
    assert "--topology" in to_markdown(topology_document(topology_to_json(four_ranks())))


def test_a_statement_that_does_not_fit_is_not_kept(stated, tmp_path):
    """A run would not open any more after a slip in its topology file."""
    trace = replace(four_ranks(), path=tmp_path / "run")
    trace.path.mkdir()
    stated("[layout]\ntp = 3")
    with pytest.raises(ConfigError, match="does not divide"):
        keep_topology(trace, tmp_path / "mesh.toml")
    assert kept_topology(trace) is None
    stated("[layout]\ntp = 2")
    assert keep_topology(trace, tmp_path / "mesh.toml").layout.tp == 2
    assert with_kept_topology(trace).layout.dp == 2
    assert (
        topology_to_json(with_kept_topology(trace))["layout_evidence"] == "stated in topology.toml"
    )


def test_members_of_a_lone_file_are_unknown(tmp_path):
    """Fails when the groups of a file that names no world size have the ranks that were assumed for them."""
    events = [step(0, 0, 1000), *launched("gemm", 5, 10, 300, 1)]
    events += launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 400, 300, 2)
    info = {"distributedInfo": {"backend": "nccl", "rank": 0}}
    result = topology_to_json(load_trace(write(tmp_path / "rank0.json", events, **info)))
    assert [(group["ranks"], result["world_size"]) for group in result["groups"]] == [([], None)]
    assert "[[group]]" not in result["template"]
    assert result["axes"][0]["group_sizes"] == []
