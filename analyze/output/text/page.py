"""The last step of every report: lines become a text that is safe to show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshscope.probe.schema.printable import printable

_FENCE = "```"


def page(lines: Iterable[str], *, markdown: bool) -> str:
    r"""Return lines as one text.

    Names of files, groups, kernels and hosts come from the input. They may hold what a
    terminal obeys, line ends, or tags, links and pictures that a viewer of Markdown would show, or fetch.

    >>> page(["group a\x1b[2J", "<script>", "![x](http://e/x.png)"], markdown=True)
    'group a\\x1b[2J\n&lt;script>\n![x]\\(http://e/x.png)'
    """
    shown = map(printable, lines)
    return "\n".join(_inert(shown) if markdown else shown)


def _inert(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of Markdown in which no tag or link begins; fenced blocks show what they hold anyway."""
    is_fenced = False
    for line in lines:
        is_fenced ^= line.startswith(_FENCE)
        yield line if is_fenced else line.replace("<", "&lt;").replace("](", "]\\(")
