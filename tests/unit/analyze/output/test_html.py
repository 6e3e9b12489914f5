"""A document as a page of HTML: whole, and with nothing in it that a name could do."""

from html.parser import HTMLParser

from meshscope.analyze.output.document import Figure, Heading, Item, Lines, Listing, Table, Verbatim
from meshscope.analyze.output.html import to_html

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Tags(HTMLParser):
    """Counts tags, and sees whether each that is opened is closed."""

    VOID = ("meta", "hr", "img", "br")

    def __init__(self):
        super().__init__()
        self.seen, self.open, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        """Note a tag that is opened."""
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag):
        """See that the tag that was opened last is closed."""
        assert self.open.pop() == tag


def tags(document):
    """Return what a page holds."""
    parser = Tags()
    parser.feed(to_html(document))
    assert not parser.open
    return parser


def test_names_of_the_input_do_nothing_on_the_page():
    """A run, rank or kernel could run a script in the browser of whoever opens the mail."""
    table = Table([HOSTILE], [[HOSTILE]], bars=[0.5], notes=[HOSTILE])
    found = tags(
        [
            Heading(HOSTILE),
            Lines([HOSTILE]),
            Heading(HOSTILE),
            Listing([Item(HOSTILE, [HOSTILE], mark=HOSTILE, is_strong=True)], first_number=1),
            Verbatim([HOSTILE]),
            Figure("<svg></svg>", HOSTILE, table),
        ]
    )
    assert not {"script", "img"} & {*found.seen}
    assert not any(name.startswith("on") for name in found.attributes)
    assert "src" not in found.attributes


def test_every_picture_has_its_numbers_and_every_part_its_place_in_the_contents():
    """Whoever cannot see a picture would have nothing, and a long report no way in."""
    table = Table(["rank", "ms"], [[0, "1.5"], [12, "20.0"]])
    text = to_html([Heading("a"), Heading("b"), Figure("<svg></svg>", "c", table), Heading("d")])
    assert text.count("<details>") == 1
    assert '<th scope="row">12</th><td>20.0</td>' in text
    assert '<a href="#part-2">d</a>' in text
    assert '<h2 id="part-2">d</h2>' in text
