"""The last step of every report: lines become a text that is safe to show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshscope.probe.schema.printable import printable

_FENCE = "```"


def page(lines: Iterable[str], *, markdown: bool) -> str:
    r"""Return lines as one text.

    Names of files, groups, kernels and hosts come from the input. They may hold what a
    terminal obeys, line ends, or tags that a viewer of Markdown would carry out.

    >>> page(["group a\x1b[2J", "<script>"], markdown=True)
    'group a\\x1b[2J\n&lt;script>'
    """
    shown = map(printable, lines)
    return "\n".join(_without_tags(shown) if markdown else shown)


def _without_tags(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of Markdown in which no tag begins; fenced blocks show what they hold anyway."""
    is_fenced = False
    for line in lines:
        is_fenced ^= line.startswith(_FENCE)
        yield line if is_fenced else line.replace("<", "&lt;")
