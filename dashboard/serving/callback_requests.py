"""Requests of pages: whether a body is one that a page of ours could have sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT, _COUNT = (str, type(None)), (int, type(None))
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pathname", "search", "href", "hash"), _TEXT),
    **dict.fromkeys(("n_clicks", "n_intervals", "submit_n_clicks"), _COUNT),
    "value": (str, int, float, bool, list, type(None)),
    "checked": (bool, type(None)),
    **dict.fromkeys(("clickData", "relayoutData"), (dict, type(None))),
}
"""What a property of a component can be, by its name; any other can be anything."""


def is_of_a_page(body: object, callbacks: Mapping[str, Any]) -> bool:
    """Return whether a body names a callback, with values for what that asks for.

    Args:
        body: Of the request.
        callbacks: Those of the dashboard, by output; each with its ``inputs`` and ``state``.
    """
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return False
    known = callbacks.get(body["output"])
    changed = body.get("changedPropIds", [])
    if known is None or not _are_texts(changed):
        return False
    if not _are_outputs(body.get("outputs"), _count(known.get("outputs_indices"))):
        return False
    return all(_fit(body.get(name, []), known[name]) for name in ("inputs", "state"))


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)


def _count(places: object) -> int:
    """Return how many outputs a callback has, by the places of these."""
    if isinstance(places, dict):
        places = list(places.values())
    if isinstance(places, (list, tuple)):
        return sum(map(_count, places))
    return 1


def _are_outputs(outputs: object, count: int) -> bool:
    if isinstance(outputs, list) and count > 1:
        return len(outputs) == count and all(_are_outputs(one, 1) for one in outputs)
    # Of components that are distinguished by a pattern there may be any number.
    several = outputs if isinstance(outputs, list) else [outputs]
    return count == 1 and all(
        isinstance(one, dict) and {"id", "property"} <= one.keys() for one in several
    )


def _fit(given: object, wanted: list[dict[str, Any]]) -> bool:
    """Return whether values are of the components and properties that a callback asks for."""
    if not isinstance(given, list) or len(given) != len(wanted):
        return False
    return all(map(_fits, given, wanted))


def _fits(value: object, wanted: dict[str, Any]) -> bool:
    # Of components that are distinguished by a pattern there may be any number.
    if isinstance(value, list):
        return str(wanted["id"]).startswith("{") and all(_fits(one, wanted) for one in value)
    if not isinstance(value, dict) or value.get("property") != wanted["property"]:
        return False
    is_it = str(wanted["id"]).startswith("{") or value.get("id") == wanted["id"]
    return is_it and isinstance(value.get("value"), _TYPES.get(wanted["property"], object))
