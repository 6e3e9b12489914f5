"""Documents as one page that needs nothing else: no network, no script, no file beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from meshscope.probe.schema.printable import printable

from ..wording.message import Text
from .document import (
    Block,
    Document,
    Figure,
    Heading,
    Item,
    Lines,
    Listing,
    Rule,
    Table,
    Verbatim,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Whatever a name in the input says, the page fetches nothing and runs nothing."""
_SEVERITY = re.compile(r"\[(critical|warning|info)\b")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def to_html(document: Document) -> str:
    """Return a document as a page of HTML; its first heading is the title.

    Every name in it is escaped.
    """
    titles = [_shown(block.text) for block in document if isinstance(block, Heading)]
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return _PAGE.format(
        policy=_POLICY,
        title=titles[0] if titles else "meshscope",
        style=style,
        body="\n".join(_body(document, titles[1:])),
    )


def _body(document: Document, titles: Sequence[str]) -> Iterator[str]:
    heading = 0
    for block in document:
        if not isinstance(block, Heading):
            yield from _block(block)
            continue
        if heading == 0:
            yield f"<h1>{_shown(block.text)}</h1>"
        else:
            # The contents come behind what the report says first.
            yield from _contents(titles) if heading == 1 else ()
            yield f'<h2 id="part-{heading}">{_shown(block.text)}</h2>'
        heading += 1


def _contents(titles: Sequence[str]) -> Iterator[str]:
    yield '<nav aria-label="Contents"><ul>'
    yield from (
        f'<li><a href="#part-{at}">{title}</a></li>' for at, title in enumerate(titles, start=1)
    )
    yield "</ul></nav>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Lines(texts):
            yield from (f"<p>{_shown(text)}</p>" for text in texts)
        case Listing():
            yield from _list(block)
        case Table():
            yield from _table(block)
        case Verbatim(lines):
            yield f"<pre>{escape(chr(10).join(map(printable, lines)))}</pre>"
        case Figure():
            yield from _figure(block)
        case Rule(text):
            yield f"<hr><p>{_shown(text)}</p>"


def _list(block: Listing) -> Iterator[str]:
    tag = "ul" if block.first_number is None else "ol"
    start = f' start="{block.first_number}"' if block.first_number is not None else ""
    yield f"<{tag}{start}>"
    for item in block.items:
        facts = "".join(f"<li>{_shown(fact)}</li>" for fact in item.facts)
        yield f"<li>{_mark(item)}{_strong(item)}{f'<ul>{facts}</ul>' if facts else ''}</li>"
    yield f"</{tag}>"


def _mark(item: Item) -> str:
    if not item.mark:
        return ""
    found = _SEVERITY.match(item.mark)
    return f'<span class="mark {found[1] if found else ""}">{_shown(item.mark)}</span> '


def _strong(item: Item) -> str:
    return f"<strong>{_shown(item.text)}</strong>" if item.is_strong else _shown(item.text)


def _table(table: Table) -> Iterator[str]:
    if table.rows:
        # A wide one scrolls by itself, by the keyboard too; the page does not.
        yield '<div class="wide" tabindex="0" role="group" aria-label="Table"><table><thead><tr>'
        yield "".join(f'<th scope="col">{_shown(str(name))}</th>' for name in table.columns)
        yield f"{'<th scope=col>share</th>' if table.bars else ''}</tr></thead><tbody>"
        for place, row in enumerate(table.rows):
            yield _row(row, table.bars[place] if place < len(table.bars) else None, table)
        yield "</tbody></table></div>"
    yield from (f"<p>{_shown(note)}</p>" for note in table.notes)


def _row(row: Sequence[object], share: float | None, table: Table) -> str:
    first, *others = (_shown(str(cell)) for cell in row)
    cells = "".join(f"<td>{cell}</td>" for cell in others)
    bar = ""
    if table.bars:
        width = 0.0 if share is None else max(0.0, min(1.0, share))
        bar = f'<td class="bar"><span style="width:{100 * width:.1f}%"></span></td>'
    return f'<tr><th scope="row">{first}</th>{cells}{bar}</tr>'


def _figure(figure: Figure) -> Iterator[str]:
    if figure.picture:
        yield f"<figure>{figure.picture}<figcaption>{_shown(figure.caption)}</figcaption>"
        yield "<details><summary>View as table</summary>"
    else:
        yield f"<figure><figcaption>{_shown(figure.caption)}</figcaption><details open><summary>Table</summary>"
    yield from _table(figure.table)
    yield "</details></figure>"


def _shown(text: Text) -> str:
    return escape(printable(str(text)))
