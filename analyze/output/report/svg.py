"""SVG by hand: a picture in a page that has no script and fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from meshscope.probe.schema.printable import printable

WIDTH = 1000
"""Of every picture, in its own units; a page draws it as wide as there is room."""


def picture(height: float, label: str, parts: Iterable[str]) -> str:
    """Return a picture with what a screen reader says of it."""
    said = escape(printable(label))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{said}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return words at a place; ``kind`` is a class of the page's style."""
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}>{escape(printable(words))}</text>'
    )


def box(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    """Return a rectangle, with words that show when a pointer is on it."""
    body = f"<title>{escape(printable(title))}</title>" if title else ""
    style = f'class="{fill}"' if fill == "idle" else f'fill="{fill}"'
    place = f'x="{x:.6g}" y="{y:.6g}" width="{max(width, 0):.6g}" height="{height:.6g}"'
    return f"<rect {place} {style}>{body}</rect>"


def line(x0: float, y0: float, x1: float, y1: float, *, dashed: bool = False) -> str:
    """Return a line in the colour of axes."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" class="line"{dash}/>'


def hatch(name: str, colour: str) -> str:
    """Return the definition of a hatched fill of a colour, used as ``url(#name)``."""
    return (
        f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{colour}"/>'
        f'<rect width="2" height="6" fill="#fff" fill-opacity=".65"/></pattern>'
    )


def legend(y: float, entries: Iterable[tuple[str, str]]) -> tuple[list[str], float]:
    """Return squares with words, in as many rows as they need, and the y below them.

    Args:
        y: Top of the first row.
        entries: Fill and words of each.
    """
    parts: list[str] = []
    x = 0.0
    for fill, words in entries:
        need = 34 + 6.9 * len(words)
        if x and x + need > WIDTH:
            x, y = 0.0, y + 20
        parts += [box(x, y, 12, 12, fill), text(x + 17, y + 11, words)]
        x += need
    return parts, y + 24
