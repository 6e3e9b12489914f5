"""The catalogue of sentences against the source that uses it."""

from __future__ import annotations

import ast
import re
from string import Formatter

import pytest

from meshscope.analyze.read.file_limits import OF_RANKS
from meshscope.analyze.wording.limits import Meaning
from meshscope.analyze.wording.message import catalogue
from meshscope.probe.reader.counters import COUNTERS
from meshscope.probe.reader.sources import SOURCES
from meshscope.probe.schema.host_records import LOST
from meshscope.probe.schema.sentences import FORMS

MOST_WORDS = 18
"""Of one sentence; a value in braces counts as its name and unit do."""
RIDDLES = re.compile(
    r"\b(whereabouts|hold up|known by|come early|on and off|and no longer|of which|for it\b.*,|told|telling)\b"
)
"""Private words that readers had to guess."""


PLACES = {
    "message": ("analyze", "dashboard", "probe", "reference_trainer", "src/meshscope"),
    "note": ("probe/reader", "probe/schema"),
}
"""Functions that make a sentence of the catalogue, and where they are called."""
GIVEN_LATER = {"who"}
"""Value that a note of a rank gets where ranks are put together."""


def _calls(project_dir):
    """Yield path, call and the values it is given later, of every sentence that the source makes."""
    for name, parts in PLACES.items():
        for path in sorted(path for part in parts for path in (project_dir / part).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            is_ours = name == "note" or _imports_message(tree)
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                if is_ours and getattr(node.func, "id", "") == name:
                    yield path, node, set()
                elif name == "note" and getattr(node.func, "attr", "") == name:
                    yield path, node, GIVEN_LATER


def _imports_message(tree):
    """Return whether ``message`` is the maker of sentences here, and no message between ranks."""
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").endswith("message")
        and "message" in {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


@pytest.fixture(scope="module")
def calls(project_dir):
    """Return the calls by code: the names of their values, None where they are not spelled out."""
    found = {}
    for path, node, later in _calls(project_dir):
        code = node.args[0] if node.args else None
        where = f"{path.relative_to(project_dir)}:{node.lineno}"
        assert isinstance(code, ast.Constant), f"{where}: the code of a message is spelled out"
        names = {keyword.arg for keyword in node.keywords} | later
        found.setdefault(code.value, []).append((where, names))
    return found


def _names_in(sentence):
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


def test_every_code_has_its_sentence_and_its_values(calls):
    """A finding would end in a traceback, or leave out a number, when somebody is shown it."""
    sentences = catalogue()
    wrong = []
    for code, places in calls.items():
        for where, names in places:
            if code not in sentences:
                wrong.append(f"{where}: {code} is not in the catalogue")
            elif None not in names and names != _names_in(sentences[code]):
                wrong.append(
                    f"{where}: {code} has {names}, the sentence {_names_in(sentences[code])}"
                )
    assert not wrong


def test_errors_of_the_probe_use_plain_forms(project_dir):
    """An error would end in a traceback: outside the analyses units and plurals have no form."""
    wrong, sentences = [], catalogue()
    for path, node, _ in _calls(project_dir):
        if "schema.message import" not in path.read_text(encoding="utf-8"):
            continue
        if getattr(node.func, "id", "") == "message" and "analyze" not in path.parts:
            forms = {form for _, _, form, _ in Formatter().parse(sentences[node.args[0].value])}
            wrong += [(path.name, node.lineno, form) for form in forms - {None, "", *FORMS}]
    assert not wrong


def test_every_sentence_is_used(calls):
    """The catalogue would hold sentences that nobody sees."""
    counted = {one.code for one in COUNTERS.values()} | set(LOST.values())
    sources = {f"{part}.{name}" for part in ("source", "effect") for name in SOURCES}
    shared = {f"{meaning}.{OF_RANKS}" for meaning in Meaning}
    assert not set(catalogue()) - set(calls) - counted - sources - shared


def test_sentences_are_short_and_plain():
    """An engineer at night would have to read a sentence twice."""
    long, odd = [], []
    for code, text in catalogue().items():
        parts = re.split(r"(?<=[.?!]) ", text)
        long += [(code, one) for one in parts if len(one.split()) > MOST_WORDS]
        odd += [(code, found.group()) for found in RIDDLES.finditer(text)]
        odd += [(code, found.group()) for found in re.finditer(r"\d%|%%", text)]
    assert not long
    assert not odd


def test_no_sentence_ends_in_a_full_stop():
    """Lists of facts would end in stops in one report and not in the other."""
    assert not [code for code, text in catalogue().items() if text.endswith(".")]


def test_limits_are_no_finished_prose(project_dir):
    """Fails when a limit is a text again, which no program can read (readers of foreign files and settings give some)."""
    found = []
    for path in sorted((project_dir / "analyze").rglob("*.py")):
        part = path.relative_to(project_dir / "analyze").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if part in ("read", "formulas") or not isinstance(node, ast.Call):
                continue
            of = getattr(getattr(node.func, "value", None), "id", "")
            if of == "limits" and any(
                isinstance(a, ast.Constant | ast.JoinedStr) for a in node.args
            ):
                found.append(f"{path.relative_to(project_dir)}:{node.lineno}")
    assert not found


def test_a_count_of_one_is_no_plural():
    """Fails when one record is written as "1 records"."""
    plain = re.compile(r"(?<!of )\{(count|lost|amount):number\} [a-z]+s\b")
    assert not [code for code, text in catalogue().items() if plain.search(text)]
