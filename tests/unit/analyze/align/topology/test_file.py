"""Topology files: every slip is named with its field and what to write instead."""

import pytest

from meshscope.analyze.align.topology.file import load_topology
from meshscope.probe.schema.errors import ConfigError


def load(folder, text):
    """Write a topology file and read it."""
    path = folder / "mesh.toml"
    path.write_text(text)
    return load_topology(path)


def test_everything_that_can_be_stated(tmp_path):
    """A stated value would be dropped without a word."""
    stated = load(
        tmp_path,
        """
        [layout]
        tp = 2
        pp = 4
        ep = 2
        fastest_first = "tp-cp-ep-dp-pp"
        [[group]]
        id = 37
        ranks = [0, 2]
        axis = "dp"
        [[group]]
        ranks = [0, 1]
        axis = "tp"
        [kernels]
        communication = ["my_.*_dispatch"]
        computation = ["nccl_lookalike"]
        """,
    )
    assert stated.sizes == {"tp": 2, "pp": 4, "ep": 2}
    assert stated.order == "pp-dp-cp-tp"
    assert [(g.group_id, g.ranks, g.axis) for g in stated.groups] == [
        ("37", (0, 2), "dp"),
        (None, (0, 1), "tp"),
    ]
    assert [len(stated.communication), len(stated.computation)] == [1, 1]
    assert (stated.source, len(stated.key)) == ("mesh.toml", 64)


@pytest.mark.parametrize(
    ("text", "field", "remedy"),
    [
        ("", "mesh.toml", "[layout]"),
        ("[layout", "is not TOML", "meshscope topology"),
        ("[mesh]\ntp = 1", "unknown field 'mesh'", "layout"),
        ("[layout]\ntensor = 2", "unknown field 'tensor'", "pp, dp, cp, tp"),
        ("[layout]\ntp = 0", "layout.tp", "1 or more"),
        ('[layout]\ntp = "2"', "layout.tp", "1 or more"),
        ("[layout]\ntp = true", "layout.tp", "1 or more"),
        ('[layout]\ntp = 2\norder = "tp-pp"', "layout.order", "pp-dp-cp-tp"),
        ('[layout]\norder = "a"\nfastest_first = "b"', "say the same", "Give one"),
        ("layout = 3", "layout: is not a table", "[layout]"),
        ("group = 3", "group: is not a list", "[[group]]"),
        ('[[group]]\naxis = "dp"', "group 1: has neither id nor ranks", "Give one"),
        ('[[group]]\nid = "a"', "states nothing", "axis"),
        ('[[group]]\nid = "a"\naxis = "xp"', "group 1.axis", "tp, pp, dp, cp, ep"),
        ('[[group]]\nranks = [0, 0]\naxis = "dp"', "group 1.ranks: names a rank twice", "once"),
        ('[[group]]\nranks = [0, -1]\naxis = "dp"', "group 1.ranks: is not a list", "[0, 1, 2, 3]"),
        ('[kernels]\ncommunication = ["("]', "kernels.communication", "backslash"),
        ('[kernels]\ncommunication = "x"', "kernels.communication", '["my_kernel"]'),
    ],
)
def test_a_slip_names_the_field_and_the_remedy(tmp_path, text, field, remedy):
    """The user would have to guess what is wrong, or a misspelt field would be ignored."""
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    assert field in str(raised.value)
    assert remedy in raised.value.remedy


def test_a_file_that_is_not_there(tmp_path):
    """A traceback would be shown for a mistyped path."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topology(tmp_path / "none.toml")
