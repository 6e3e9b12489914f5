"""Reading a topology file: TOML with a mesh, groups and kernel rules.

::

    [layout]
    tp = 2
    pp = 4                      # dp follows from the number of ranks
    order = "pp-dp-cp-tp"       # from the slowest to the fastest varying

    [[group]]
    id = "37"
    ranks = [0, 2, 4, 6]
    axis = "dp"

    [kernels]
    communication = ["my_all_to_all"]

    [model]                     # what MFU counts: fields of ModelDescription
    hugging_face = "config.json"
    seq_len = 8192

    [training]
    global_batch_size = 512     # sequences of a step
    microbatches = 32
    schedule = "1f1b"
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import MESH_AXES
from meshscope.probe.schema.terms import Axis

from ...tables.toml_file import read_toml
from .stated import StatedGroup, StatedTopology
from .stated_hosts import read_hosts
from .stated_job import read_job

_SECTIONS = ("layout", "group", "host", "kernels", "model", "training")
_SIZES = (*MESH_AXES, "ep", "vpp")
_ORDER, _FASTEST_FIRST = "order", "fastest_first"
_LAYOUT_FIELDS = (*_SIZES, _ORDER, _FASTEST_FIRST)
_GROUP_FIELDS = ("id", "ranks", "axis")
_KERNEL_FIELDS = ("communication", "computation")
_MOST_RANKS = 10_000_000
"""More than any job has: a larger number is a slip of the pen."""


def load_topology(path: Path) -> StatedTopology:
    """Read and check a topology file.

    Raises:
        ConfigError: It cannot be read, is not TOML, or a field is wrong; the message
            names the field and the remedy.
    """
    content, raw = read_toml(path, remedy="Compare with: meshscope topology")
    _only_known(content, _SECTIONS, str(path))
    layout = _table(content, "layout", path)
    kernels = _table(content, "kernels", path)
    groups = content.get("group", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ConfigError(
            "is no list of tables", where=f"{path}: group", remedy="Write each as [[group]]"
        )
    job = read_job(content, path)
    stated = StatedTopology(
        source=path.name,
        key=hashlib.sha256(b"".join([raw, *(file.read_bytes() for file in job.files)])).hexdigest(),
        job=job,
        machines=(machines := read_hosts(content, path)),
        sizes=_sizes(layout, f"{path}: layout"),
        order=_order(layout, f"{path}: layout"),
        groups=tuple(
            _group(group, f"{path}: group {number}") for number, group in enumerate(groups, start=1)
        ),
        communication=_patterns(kernels, "communication", path),
        computation=_patterns(kernels, "computation", path),
    )
    if not (layout or groups or kernels or machines or job.model or job.training):
        raise ConfigError(
            "states nothing", where=str(path), remedy="Add a [layout] table: tp = 2, pp = 4"
        )
    return stated


def _only_known(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Refuse fields that nobody would read: a misspelt one must not pass in silence.

    Raises:
        ConfigError: There is one.
    """
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            f"unknown field {unknown[0]!r}", where=where, remedy=f"Use {', '.join(known)}"
        )


def _table(content: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError("is no table", where=f"{path}: {name}", remedy=f"Write [{name}] above it")
    known = _LAYOUT_FIELDS if name == "layout" else _KERNEL_FIELDS
    _only_known(table, known, f"{path}: {name}")
    return table


def _sizes(layout: Mapping[str, object], where: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name in _SIZES:
        value = layout.get(name)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= _MOST_RANKS:
            raise ConfigError(
                f"{value!r} is no number of ranks",
                where=f"{where}.{name}",
                remedy="Write 1 or more",
            )
        sizes[name] = value
    return sizes


def _order(layout: Mapping[str, object], where: str) -> str | None:
    """Return the order of the axes from the slowest to the fastest varying.

    ``fastest_first`` takes the other direction, which is how some trainers write it;
    ``ep`` may stand in it and is left out, because experts share the dp and cp axes.
    """
    given = [name for name in (_ORDER, _FASTEST_FIRST) if name in layout]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigError(
            f"{_ORDER} and {_FASTEST_FIRST} say the same thing", where=where, remedy="Give one"
        )
    text = layout[given[0]]
    names = [name for name in str(text).lower().split("-") if name != Axis.EP]
    if not isinstance(text, str) or sorted(names) != sorted(MESH_AXES):
        raise ConfigError(
            f"{text!r} does not name {', '.join(MESH_AXES)} once each",
            where=f"{where}.{given[0]}",
            remedy=f'Write {given[0]} = "pp-dp-cp-tp" with the axes in their order',
        )
    return "-".join(names if given[0] == _ORDER else reversed(names))


def _group(group: Mapping[str, object], where: str) -> StatedGroup:
    _only_known(group, _GROUP_FIELDS, where)
    group_id, axis = group.get("id"), group.get("axis")
    if isinstance(group_id, int) and not isinstance(group_id, bool):
        group_id = str(group_id)
    if group_id is not None and (not isinstance(group_id, str) or not group_id):
        raise ConfigError(
            f"{group_id!r} is no group id", where=f"{where}.id", remedy='Write id = "37"'
        )
    ranks = _ranks(group.get("ranks", []), f"{where}.ranks")
    if group_id is None and not ranks:
        raise ConfigError("has neither id nor ranks", where=where, remedy="Give one of them")
    if axis is not None and axis not in tuple(Axis):
        raise ConfigError(
            f"{axis!r} is no axis", where=f"{where}.axis", remedy=f"Use {', '.join(Axis)}"
        )
    if axis is None and (group_id is None or not ranks):
        raise ConfigError(
            "states nothing about the group", where=where, remedy='Add axis = "dp" or its ranks'
        )
    return StatedGroup(
        group_id=group_id, ranks=ranks, axis=None if axis is None else Axis(str(axis))
    )


def _ranks(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(rank) is int and 0 <= rank < _MOST_RANKS for rank in value
    ):
        raise ConfigError("is no list of ranks", where=where, remedy="Write ranks = [0, 1, 2, 3]")
    if len(set(value)) < len(value):
        raise ConfigError("names a rank twice", where=where, remedy="Name each member once")
    return tuple(value)


def _patterns(kernels: Mapping[str, object], name: str, path: Path) -> tuple[re.Pattern[str], ...]:
    where = f"{path}: kernels.{name}"
    texts = kernels.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(
            "is no list of regular expressions", where=where, remedy=f'Write {name} = ["my_kernel"]'
        )
    found = []
    for text in texts:
        try:
            found.append(re.compile(text, re.IGNORECASE))
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"{text!r} is no regular expression ({error})",
                where=where,
                remedy="Put a backslash before characters such as ( [ * + ?",
            ) from error
    return tuple(found)
