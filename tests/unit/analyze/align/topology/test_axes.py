"""Axes of process groups: by layout, by name, by traffic, never by size."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.align.topology.axes import with_axes
from meshscope.analyze.wording.message import message, message_of_cell
from meshscope.probe.schema.layout import ParallelLayout

UNKNOWN = str(message("axis.unknown"))


def axis_of(
    description=None, *, layout=None, ranks=(0, 1), recorded="other", evidence=None, **rows
):
    """Return the axis and evidence that the only group gets."""
    group = {
        "ranks": list(ranks),
        "description": description,
        "axis": recorded,
        "evidence": evidence,
    }
    found = with_axes(trace_of(layout=layout, group=[group], **rows)).frame("group").iloc[0]
    return found["axis"], str(message_of_cell(found["evidence"]))


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("mesh_dp_shard", "dp"),
        ("tp", "tp"),
        ("pp0", "pp"),
        ("fsdp", "dp"),
        ("default_pg", "other"),
        ("undefined", "other"),
        ("http_upload", "other"),
        ("steps", "other"),
    ],
)
def test_names_of_frameworks(name, axis):
    """Time on one axis would be reported on another."""
    assert axis_of(name)[0] == axis


@pytest.mark.parametrize(
    ("evidence", "axis", "shown"),
    [
        ("named when the group was registered", "dp", "named when the group was registered"),
        ("evidence.axis_registered", "dp", "named when the group was registered"),
        ('axis.synthetic {"order": "pp-dp-cp-tp"}', "dp", "the layout of the synthetic job (pp-dp-cp-tp)"),
        (None, "dp", "recorded by the probe"),
        ("its members lie along this axis of the layout", "other", UNKNOWN),
        ("axis.by_layout", "other", UNKNOWN),
        ('axis.stated {"source": "mesh.toml"}', "other", UNKNOWN),
        ("stated in mesh.toml", "other", UNKNOWN),
    ],
)  # fmt: skip
def test_what_was_recorded_stays_and_what_was_inferred_is_inferred_anew(evidence, axis, shown):
    """A run that is opened again would keep an axis that its topology file does not state any more."""
    assert axis_of(recorded="dp", evidence=evidence) == (axis, shown)


def test_the_layout_overrules_the_name():
    """A misleading name would decide although the mesh is known."""
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    assert axis_of("data", layout=layout, ranks=(0, 4))[0] == "pp"
    assert axis_of("data", layout=layout, ranks=(0, 2))[0] == "dp"
    assert axis_of("data", layout=layout, ranks=(2, 3))[0] == "tp"
    assert axis_of(None, layout=layout, ranks=(0, 3))[0] == "other"


def test_an_expert_group_along_a_mesh_axis_is_of_the_experts():
    """Exchanges of tokens would be counted as sums of gradients, where all replicas share experts."""
    shared = ParallelLayout(dp=2, ep=2)
    assert axis_of("ep", layout=shared)[0] == "ep"
    assert axis_of("dp", layout=shared)[0] == "dp"
    assert axis_of("ep", layout=ParallelLayout(dp=2))[0] == "dp"
    assert axis_of("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", layout=shared)[0] == "ep"
    assert axis_of("EXPERT_DATA_PARALLEL_GROUP", layout=shared)[0] == "dp"
    beside = ParallelLayout(tp=2, dp=2, ep=2)
    assert axis_of("mesh_ep", layout=beside)[0] == "ep"
    assert axis_of("mesh_tp", layout=beside)[0] == "tp"


def test_traffic_tells_what_name_and_layout_do_not():
    """A pipeline group without a name would stay unknown."""
    sends = [{"peer": 1, "direction": "send", "start_ns": 0, "end_ns": 1}]
    assert axis_of(p2p=sends)[0] == "pp"
    collective = [{"start_ns": 0, "end_ns": 1}]
    assert axis_of(collective=collective)[0] == "dp"
    assert axis_of(collective=collective, p2p=sends)[0] == "other"


def test_what_the_probe_recorded_stays_where_nothing_else_tells():
    """A group that the user named would lose its axis."""
    assert axis_of(recorded="cp")[0] == "cp"


def test_events_get_the_axis_of_their_group():
    """The ledger would put the time under another axis than the table of groups."""
    trace = trace_of(
        group=[
            {"group_id": "a", "ranks": [0, 1], "description": "tp"},
            {"group_id": "b", "ranks": [0, 2], "description": "cp"},
        ],
        collective=[
            {"group_id": "b", "start_ns": 0, "end_ns": 1, "axis": "other"},
            {"group_id": "a", "start_ns": 0, "end_ns": 1, "axis": "other"},
            {"group_id": "unknown", "start_ns": 0, "end_ns": 1, "axis": "dp"},
        ],
    )
    axes = with_axes(trace).frame("collective")["axis"].astype(str).tolist()
    assert axes == ["cp", "tp", "other"]


def test_sends_on_the_default_group_lie_along_the_axis_of_their_ends():
    """A pipeline that sends on the group of all ranks would be time on no axis."""
    layout = ParallelLayout(pp=2, dp=2)
    sends = [
        {"rank": rank, "peer": peer, "direction": "send", "start_ns": 0, "end_ns": 1}
        for rank, peer in ((0, 2), (0, 1), (0, 3), (1, 7))
    ]
    found = with_axes(trace_of(layout=layout, group=[{"ranks": [0, 1, 2, 3]}], p2p=sends))
    assert found.frame("p2p")["axis"].astype(str).tolist() == ["pp", "dp", "other", "other"]
