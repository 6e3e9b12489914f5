"""Sentences are found by their codes, whichever part of a file is read for them."""

import tomllib

import pytest

from meshscope.analyze.wording.message import CATALOGUE
from meshscope.probe.schema.sentences import Sentences, error_sentences, text_of, text_of_errors


def test_the_parts_of_all_files_are_the_files():
    """Fails when a sentence is lost, or two parts have one name, because parts are parsed apart."""
    texts = [text_of_errors()]
    texts += [text_of("meshscope.analyze.wording", file) for file in CATALOGUE]
    by_code = {
        f"{part}.{name}": sentence
        for text in texts
        for part, of_part in tomllib.loads(text).items()
        for name, sentence in of_part.items()
    }
    assert dict(Sentences(*texts)) == by_code
    assert len(Sentences(*texts)) == len(by_code) == sum(map(len, map(Sentences, texts)))


def test_a_part_is_parsed_when_it_is_wanted():
    """Fails when every command waits until the sentences of all others are parsed."""
    found = Sentences('# head\n[one]  # why\nfirst = "1"\n[other]\nsecond = damaged\n')
    assert found["one.first"] == "1"
    with pytest.raises(tomllib.TOMLDecodeError):
        found["other.second"]


@pytest.mark.parametrize("code", ["refused", "refused.", "no.part", "", "refused.no_such"])
def test_an_unknown_code_is_named(code):
    """Fails when a code of a newer version ends in an error that does not name it."""
    assert code not in error_sentences()
    with pytest.raises(KeyError, match=f"'{code}'"):
        error_sentences()[code]
