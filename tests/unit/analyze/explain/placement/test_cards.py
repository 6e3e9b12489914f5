"""Network cards on the other socket, and unequal ones."""

import dataclasses

import pytest
from tests.tables import trace_of

from meshscope.analyze.align.topology.file import load_topology
from meshscope.analyze.align.topology.stated import apply_topology
from meshscope.analyze.explain.placement.cards import card_violations, unchecked
from meshscope.analyze.explain.placement.violations import card_text
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.output.json import topology_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import topology_document
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

STATED = """
[[host]]
name = "a"
ranks = [0, 1, 2, 3]
sockets = [[0, 1], [2, 3]]
[[host.nic]]
name = "n0"
socket = 0
gbit_per_s = {speed}
ranks = {first}
[[host.nic]]
name = "n1"
socket = 1
gbit_per_s = 400
ranks = {second}
[[host]]
name = "b"
ranks = [4, 5, 6, 7]
[[host.nic]]
name = "n0"
gbit_per_s = 800
"""


def machines(speed=400, first=(0, 1), second=(2, 3)):
    """Return the file; each rank has 25 GB/s unless said otherwise."""
    return STATED.format(speed=speed, first=list(first), second=list(second))


def stated(tmp_path, text):
    """Return a job of two stages of four replicas with what a file states."""
    trace = generate(SyntheticJob(layout=ParallelLayout(pp=2, dp=4), microbatches=4))[0]
    path = tmp_path / "machines.toml"
    path.write_text(text, encoding="utf-8")
    return apply_topology(dataclasses.replace(trace, clocks={}), load_topology(path))


def test_stated_hosts_place_the_ranks(tmp_path):
    """Fails when a trace without hosts cannot be given them."""
    trace = stated(tmp_path, machines())
    result = topology_to_json(trace)["placement"]
    assert result["hosts"] == {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    assert result["not_checked"] == []


def test_rank_on_the_other_socket_is_named(tmp_path):
    """Fails when a rank without a card of its socket passes, or one that has both is blamed."""
    assert card_violations(stated(tmp_path, machines()), None) == ()
    both = card_violations(stated(tmp_path, machines(first=(0, 1, 2))), None)
    assert all(one.code.value == "unequal_rails" for one in both)
    trace = stated(tmp_path, machines(first=(0, 1, 2), second=(3,)))
    found = card_violations(trace, None)[0]
    assert (found.code.value, found.host, found.port, found.ranks) == (
        "card_other_socket",
        "a",
        "n0",
        (2,),
    )
    assert str(card_text(found)) == "Rank 2 of host a sends through n0 on the other socket"


def test_slow_card_is_named_with_its_price(tmp_path):
    """Fails when the card that holds its group up is not named, or one of equal cards is."""
    trace = stated(tmp_path, machines(speed=100))
    result = topology_to_json(trace)["placement"]["cards"]
    (one,) = result
    assert (one["host"], one["port"], one["axis"], one["ranks"]) == ("a", "n0", "pp", [0, 1])
    assert (one["bytes_per_s"], one["others_bytes_per_s"]) == (6.25e9, 25e9)
    assert one["cost_ns_per_step"] > 0
    assert "Port n0 of host a gives each rank 6.2 GB/s" in to_plain(
        topology_document(topology_to_json(trace))
    )
    causes = [finding.cause for finding in diagnose(trace).findings]
    assert "unequal_rails" in causes


def test_sampled_ports_show_unequal_hosts():
    """Fails when the speeds that the agent sampled are not compared."""
    layout = ParallelLayout(dp=2)
    ports = [
        {"host": host, "port": "eth0", "time_ns": 1, "speed_bytes_per_s": speed}
        for host, speed in (("a", 10e9), ("b", 5e9))
    ]
    trace = trace_of(
        layout=layout,
        group=[{"axis": "dp"}],
        step=[{"rank": rank, "dur_ns": 10} for rank in (0, 1)],
        link_sample=ports,
    )
    trace = dataclasses.replace(trace, clocks={0: "a", 1: "b"})
    (found,) = card_violations(trace, None)
    assert (found.host, found.port, found.ranks) == ("b", None, (1,))
    assert [code.value for code in unchecked(trace)] == ["network_card_socket"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name = "b"', 'name = "a"'), "name a is given twice"),
        (("ranks = [4, 5, 6, 7]", "ranks = [3, 5]"), "rank 3 is given twice"),
        (("sockets = [[0, 1], [2, 3]]", "sockets = [[9]]"), "rank 9 does not run on this host"),
        (("socket = 1", "socket = -1"), "is not a socket"),
        (("gbit_per_s = 400\nranks", "gbit_per_s = true\nranks"), "is not a speed"),
        (("gbit_per_s", "speed"), "unknown field 'speed'"),
        (("ranks = [4, 5, 6, 7]", "ranks = []"), "is not a list of ranks"),
        (('name = "b"', "name = 7"), "has no name"),
    ],
)
def test_wrong_hosts_are_refused(tmp_path, change, message):
    """Fails when a slip of the pen puts ranks elsewhere without a word."""
    text = machines().replace(*change)
    with pytest.raises(ConfigError, match=message):
        stated(tmp_path, text)
