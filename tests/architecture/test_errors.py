"""Errors that a user can see are messages: a code with typed values, whose sentence stands in one catalogue.

Functions that raise one for their callers take a ``Message``, so the type checker sees their sentences.
"""

from __future__ import annotations

import ast

from meshscope.probe.schema.errors import MeshscopeError

OTHERS = {"Refusal", "FieldError", "MessageError", "BadParameter", "UsageError"}
"""What a user is answered that is no error of ours: replies of a process, a wrong command line."""
ABSENT = {"UnsupportedError", "NotApplicableError"}
"""Why a hook is absent: its reason stands in the manifest."""
PROSE: dict[str, str] = {}
"""``file:line`` of an error with a sentence of its own, with the reason."""


def _kinds(error):
    return {error.__name__}.union(*map(_kinds, error.__subclasses__()))


def _declared_kinds(sources):
    """Return the names of all errors of ours, imported here or not."""
    kinds = _kinds(MeshscopeError)
    bases = [
        (node.name, {getattr(base, "id", "") for base in node.bases})
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    ]
    while more := {name for name, of in bases if of & kinds} - kinds:
        kinds |= more
    return kinds


def _sentences(call, kinds):
    """Return what of a call becomes text of an error; [] where it raises none."""
    if getattr(call.func, "id", getattr(call.func, "attr", "")) not in kinds:
        return []
    named = [one.value for one in call.keywords if one.arg in ("what", "remedy")]
    return [*call.args[:1], *named]


def _is_prose(value, texts):
    """Return whether a value is a sentence made in place: a text, or a name that holds one."""
    if isinstance(value, ast.IfExp):
        return _is_prose(value.body, texts) or _is_prose(value.orelse, texts)
    if isinstance(value, ast.BinOp):
        return _is_prose(value.left, texts) or _is_prose(value.right, texts)
    if isinstance(value, ast.Name):
        return value.id in texts
    is_text = isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str)
    )
    return is_text and getattr(value, "value", "text") != ""


def _texts_of(nodes):
    """Return the names that are given a text."""
    return {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_prose(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_errors_are_no_finished_prose(sources):
    """Fails when an error is a text again: its numbers would stand in no JSON, its words in no catalogue."""
    kinds, found = _declared_kinds(sources) | OTHERS | ABSENT, set()
    for source in sources:
        constants = _texts_of(source.tree.body)
        for scope in ast.walk(source.tree):
            if not isinstance(scope, ast.FunctionDef):
                continue
            texts = constants | _texts_of(ast.walk(scope))
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and any(
                    _is_prose(value, texts) for value in _sentences(node, kinds)
                ):
                    found.add(f"{source.name}:{node.lineno}")
    assert found == PROSE.keys()
