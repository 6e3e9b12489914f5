"""A topology file with any values in any field is read or refused, and never crashes."""

import json
from string import ascii_letters

from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.align.topology.file import load_topology
from meshscope.probe.schema.errors import ConfigError

PLAIN = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.sampled_from(["tp", "dp", "other", "pp-dp-cp-tp", "tp-cp-ep-dp-pp", "(", "a|b", ""]),
    st.lists(st.integers(-2, 9), max_size=4),
    st.lists(st.sampled_from(["nccl", "(", "", "x{9}"]), max_size=2),
)
FIELDS = st.one_of(
    st.sampled_from(
        ["tp", "pp", "dp", "ep", "order", "fastest_first", "id", "ranks", "axis", "communication"]
    ),
    st.text(ascii_letters, min_size=1, max_size=3),
)
TABLE = st.dictionaries(FIELDS, PLAIN, max_size=4)


def toml(heading, table):
    """Return one table; JSON scalars and lists of them are TOML too."""
    return "\n".join([heading, *(f"{key} = {json.dumps(value)}" for key, value in table.items())])


def read(path):
    """Return what a file states, or the error that refuses it."""
    try:
        return load_topology(path)
    except ConfigError as error:
        return error


@given(layout=TABLE, groups=st.lists(TABLE, max_size=2), kernels=TABLE)
def test_any_file_is_read_or_refused_with_a_remedy(tmp_path_factory, layout, groups, kernels):
    """A slip in the file would end in a traceback."""
    path = tmp_path_factory.mktemp("topology") / "mesh.toml"
    parts = [toml("[layout]", layout), *(toml("[[group]]", one) for one in groups)]
    path.write_text("\n".join([*parts, toml("[kernels]", kernels)]))
    found = read(path)
    if isinstance(found, ConfigError):
        assert found.where.startswith(str(path))
        assert found.remedy
        assert "\n" not in str(found)
    else:
        assert set(found.sizes) <= {"tp", "pp", "dp", "cp", "ep", "vpp"}
        assert len(found.groups) == len(groups)
