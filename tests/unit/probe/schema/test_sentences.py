"""Sentences are found by their codes, whichever part of a file is read for them."""

import tomllib
from importlib.resources import files

import pytest

from meshscope.probe.schema.sentences import Sentences, error_sentences, sentences


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("meshscope.probe.schema", "errors.toml"),
        ("meshscope.analyze.wording", "catalogue.toml"),
        ("meshscope.analyze.wording", "limits.toml"),
    ],
)
def test_the_parts_of_a_file_are_the_file(package, file):
    """Fails when a sentence is lost, or two parts have one name, because parts are parsed apart."""
    whole = tomllib.loads(files(package).joinpath(file).read_text(encoding="utf-8"))
    by_code = {f"{part}.{name}": text for part in whole for name, text in whole[part].items()}
    assert dict(sentences(package, file)) == by_code
    assert len(sentences(package, file)) == len(by_code)


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
