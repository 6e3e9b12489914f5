"""Tables of text."""

from meshscope.analyze.wording.text_table import markdown_table, text_table


def test_columns_are_aligned():
    """If this fails, figures of one column do not stand below each other."""
    assert text_table(["rank", "ms"], [[0, "1.5"], [12, "20.0"]]) == [
        "  rank    ms",
        "  0      1.5",
        "  12    20.0",
    ]


def test_a_name_cannot_break_out_of_a_markdown_cell():
    """If this fails, a group called 'a|b' adds a column to the report."""
    lines = markdown_table(["group", "ms"], [["a|b", 1]])
    assert lines == ["| group | ms |", "| --- | ---: |", "| a\\|b | 1 |"]
