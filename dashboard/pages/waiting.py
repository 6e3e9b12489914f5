"""What stands on a page while a process of its own still measures what belongs there."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from .shell import card, empty

_LOOK_MS = 500


def layout(page: str) -> list[Component]:
    """Return a page of which nothing is there yet."""
    return [html.H1(page.capitalize(), className="ms-title"), *cards("Measured now")]


def cards(title: str) -> list[Component]:
    """Return what stands in place of a part of a page; the page is drawn anew as soon as it is there."""
    why = "Large run: this part appears once it is measured."
    box = html.Div(empty("Still being measured", why), role="status")
    return [card(title, [box]), dcc.Interval(id="page-wait", interval=_LOOK_MS, disabled=False)]
