"""Hosts of a topology file.

::

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

from collections.abc import Iterable, Mapping
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError

from ...tables.machines import Card, Machine
from ...wording.message import message

_HOST_FIELDS = ("name", "ranks", "sockets", "nic")
_CARD_FIELDS = ("name", "socket", "gbit_per_s", "ranks")
_MOST_SOCKETS = 64
_MOST_GBIT = 1e5
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
    _only_known(table, _HOST_FIELDS, where)
    ranks = _ranks(table.get("ranks"), f"{where}.ranks")
    given = table.get("sockets", [])
    if not isinstance(given, list):
        raise ConfigError(
            message("refused.no_list"), where=f"{where}.sockets", remedy=message("advice.sockets")
        )
    sockets = tuple(_ranks(own, f"{where}.sockets") for own in given)
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
    _only_known(table, _CARD_FIELDS, where)
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
    ranks = _ranks(table["ranks"], f"{where}.ranks") if "ranks" in table else ()
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


def _only_known(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            message("refused.unknown_field", name=unknown[0]),
            where=where,
            remedy=message("advice.use", known=list(known)),
        )


def _name(table: Mapping[str, object], where: str) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            message("refused.no_name"), where=where, remedy=message("advice.name_of_host")
        )
    return name


def _ranks(value: object, where: str) -> tuple[int, ...]:
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
