"""Reading a topology file: TOML with a mesh, hosts, groups and kernel rules.

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

    [[host]]
    name = "node1"
    ranks = [0, 1, 2, 3]
    sockets = [[0, 1], [2, 3]]      # ranks by the socket of their device

    [[host.nic]]
    name = "mlx5_0"
    socket = 0
    gbit_per_s = 400
    ranks = [0, 1]                  # who sends through it; all ranks of the host if left out
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import MESH_AXES
from meshscope.probe.schema.terms import Axis

from ...tables.toml_file import only_known, read_toml, table_of
from ...tables.trace import Card, Machine
from ...wording.message import message
from .stated import StatedGroup, StatedTopology
from .stated_job import read_job

_HOST_FIELDS = ("name", "ranks", "sockets", "nic")
_CARD_FIELDS = ("name", "socket", "gbit_per_s", "ranks")
_MOST_SOCKETS = 64
"""Above every machine that exists: what is larger is a typing error."""
_MOST_GBIT = 1e5
"""A hundred times the fastest card: what is larger has another unit."""
_BITS = 8


def read_hosts(content: Mapping[str, object], path: Path) -> tuple[Machine, ...]:
    """Return the stated hosts.

    Raises:
        ConfigError: A field is wrong, or a rank runs on two hosts.
    """
    tables = _tables(content.get("host", []), f"{path}: host", "[[host]]")
    found = tuple(
        _host(table, f"{path}: host {number}") for number, table in enumerate(tables, start=1)
    )
    _once([host.name for host in found], f"{path}: host", "name")
    _once([rank for host in found for rank in host.ranks], f"{path}: host", "rank")
    return found


def _host(table: Mapping[str, object], where: str) -> Machine:
    only_known(table, _HOST_FIELDS, where)
    ranks = _ranks_of_host(table.get("ranks"), f"{where}.ranks")
    given = table.get("sockets", [])
    if not isinstance(given, list):
        raise ConfigError(
            message("refused.no_list"), where=f"{where}.sockets", remedy=message("advice.sockets")
        )
    sockets = tuple(_ranks_of_host(own, f"{where}.sockets") for own in given)
    _once([rank for own in sockets for rank in own], f"{where}.sockets", "rank")
    _inside([rank for own in sockets for rank in own], ranks, f"{where}.sockets")
    cards = _tables(table.get("nic", []), f"{where}.nic", "[[host.nic]]")
    return Machine(
        name=_name(table, where),
        ranks=ranks,
        sockets=sockets,
        cards=tuple(
            _card(card, ranks, f"{where}.nic {number}") for number, card in enumerate(cards, 1)
        ),
    )


def _card(table: Mapping[str, object], of_host: tuple[int, ...], where: str) -> Card:
    only_known(table, _CARD_FIELDS, where)
    socket, speed = table.get("socket"), table.get("gbit_per_s")
    if socket is not None and (type(socket) is not int or not 0 <= socket < _MOST_SOCKETS):
        raise ConfigError(
            message("refused.no_socket", value=socket),
            where=f"{where}.socket",
            remedy=message("advice.socket"),
        )
    is_number = isinstance(speed, (int, float)) and not isinstance(speed, bool)
    if speed is not None and not (is_number and 0 < float(str(speed)) <= _MOST_GBIT):
        raise ConfigError(
            message("refused.no_speed", value=speed),
            where=f"{where}.gbit_per_s",
            remedy=message("advice.speed"),
        )
    ranks = _ranks_of_host(table["ranks"], f"{where}.ranks") if "ranks" in table else ()
    _inside(ranks, of_host, f"{where}.ranks")
    return Card(
        name=_name(table, where),
        socket=socket if isinstance(socket, int) else None,
        bytes_per_s=None if speed is None else float(str(speed)) * 1e9 / _BITS,
        ranks=ranks,
    )


def _tables(value: object, where: str, wanted: str) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ConfigError(
            message("refused.no_list_of_tables"),
            where=where,
            remedy=message("advice.write_each_as", name=wanted),
        )
    return value


def _name(table: Mapping[str, object], where: str) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            message("refused.no_name"), where=where, remedy=message("advice.name_of_host")
        )
    return name


def _ranks_of_host(value: object, where: str) -> tuple[int, ...]:
    is_list = isinstance(value, list) and bool(value)
    if not is_list or not all(type(rank) is int and rank >= 0 for rank in list(value)):  # type: ignore[call-overload]
        raise ConfigError(
            message("refused.no_list_of_ranks"), where=where, remedy=message("advice.ranks")
        )
    return tuple(value)  # type: ignore[arg-type]


def _once(items: list[str] | list[int], where: str, what: str) -> None:
    twice = sorted({item for item in items if items.count(item) > 1}, key=str)  # type: ignore[arg-type]
    if twice:
        raise ConfigError(
            message("refused.item_twice", what=what, item=twice[0]),
            where=where,
            remedy=message("advice.name_each_once", what=what),
        )


def _inside(ranks: Iterable[int], of_host: tuple[int, ...], where: str) -> None:
    outside = sorted(set(ranks) - set(of_host))
    if outside:
        raise ConfigError(
            message("refused.rank_on_other_host", rank=outside[0]),
            where=where,
            remedy=message("advice.compare_ranks"),
        )


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
    content, raw = read_toml(path, remedy=message("advice.topology"))
    only_known(content, _SECTIONS, str(path))
    layout, kernels = (table_of(content, name, path) for name in ("layout", "kernels"))
    only_known(layout, _LAYOUT_FIELDS, f"{path}: layout")
    only_known(kernels, _KERNEL_FIELDS, f"{path}: kernels")
    groups = content.get("group", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ConfigError(
            message("refused.no_list_of_tables"),
            where=f"{path}: group",
            remedy=message("advice.write_each_as", name="[[group]]"),
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
            message("refused.states_nothing"),
            where=str(path),
            remedy=message("advice.layout_table"),
        )
    return stated


def _sizes(layout: Mapping[str, object], where: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name in _SIZES:
        value = layout.get(name)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= _MOST_RANKS:
            raise ConfigError(
                message("refused.no_number_of_ranks", value=value),
                where=f"{where}.{name}",
                remedy=message("advice.write_at_least", least=1),
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
            message("refused.same_thing", names=[_ORDER, _FASTEST_FIRST]),
            where=where,
            remedy=message("advice.give_one"),
        )
    text = layout[given[0]]
    names = [name for name in str(text).lower().split("-") if name != Axis.EP]
    if not isinstance(text, str) or sorted(names) != sorted(MESH_AXES):
        raise ConfigError(
            message("refused.order_of_axes", value=text, axes=list(MESH_AXES)),
            where=f"{where}.{given[0]}",
            remedy=message("advice.order_of_axes", name=given[0]),
        )
    return "-".join(names if given[0] == _ORDER else reversed(names))


def _group(group: Mapping[str, object], where: str) -> StatedGroup:
    only_known(group, _GROUP_FIELDS, where)
    group_id, axis = group.get("id"), group.get("axis")
    if isinstance(group_id, int) and not isinstance(group_id, bool):
        group_id = str(group_id)
    if group_id is not None and (not isinstance(group_id, str) or not group_id):
        raise ConfigError(
            message("refused.no_group_id", value=group_id),
            where=f"{where}.id",
            remedy=message("advice.group_id"),
        )
    ranks = _ranks(group.get("ranks", []), f"{where}.ranks")
    if group_id is None and not ranks:
        raise ConfigError(
            message("refused.no_id_no_ranks"),
            where=where,
            remedy=message("advice.give_one_of_them"),
        )
    if axis is not None and axis not in tuple(Axis):
        raise ConfigError(
            message("refused.no_axis", value=axis),
            where=f"{where}.axis",
            remedy=message("advice.use", known=list(Axis)),
        )
    if axis is None and (group_id is None or not ranks):
        raise ConfigError(
            message("refused.states_nothing_of_group"),
            where=where,
            remedy=message("advice.group"),
        )
    return StatedGroup(
        group_id=group_id, ranks=ranks, axis=None if axis is None else Axis(str(axis))
    )


def _ranks(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(rank) is int and 0 <= rank < _MOST_RANKS for rank in value
    ):
        raise ConfigError(
            message("refused.no_list_of_ranks"), where=where, remedy=message("advice.ranks")
        )
    if len(set(value)) < len(value):
        raise ConfigError(
            message("refused.names_rank_twice"),
            where=where,
            remedy=message("advice.each_member_once"),
        )
    return tuple(value)


def _patterns(kernels: Mapping[str, object], name: str, path: Path) -> tuple[re.Pattern[str], ...]:
    where = f"{path}: kernels.{name}"
    texts = kernels.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(
            message("refused.no_patterns"),
            where=where,
            remedy=message("advice.patterns", name=name),
        )
    found = []
    for text in texts:
        try:
            found.append(re.compile(text, re.IGNORECASE))
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                message("refused.no_pattern", text=text, error=str(error)),
                where=where,
                remedy=message("advice.backslash"),
            ) from error
    return tuple(found)
