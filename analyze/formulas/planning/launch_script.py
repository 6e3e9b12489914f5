"""Arguments as a launch script or a command line gives them: ``--num-layers 32 --swiglu``.

A script is not run: variables that it sets to plain values are put in, and defaults of ``${NAME:-8}`` where it
sets none. What else it computes stays as the text that it is, so that an error can name it::

    HIDDEN=4096
    MODEL_ARGS=(                            hidden_size 4096
        --hidden-size $HIDDEN               swiglu True
        --swiglu ${MORE_ARGS[@]}            seq_length "$((A * B))"
        --seq-length=$((A * B))
    )
"""

from __future__ import annotations

import re

_IS_SCRIPT = re.compile(
    r"(?<![^\s\"'(])--(?:num-layers|hidden-size|num-attention-heads)[\s=]+[^:\s]"
)
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
_GOES_ON = re.compile(r"\\\r?\n")
_VALUE = r"\"[^\"\n]*\"|'[^'\n]*'|\$\(\(.*?\)\)|[^\s\"']+"
_FLAG = re.compile(rf"(?<![^\s\"'(])--([A-Za-z][\w-]*)(?:=|[ \t\r\n]*)((?!--)(?:{_VALUE}))?")
_SET = re.compile(
    r"(?m)^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s\"';(]*)[ \t]*;?[ \t]*$"
)
_USE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_ARGUMENTS = re.compile(
    r"\$\{?\w*(?:ARGS|OPTS|OPTIONS|FLAGS|PARAMS)\w*(?:\[[@*]\])?\}?|.*\[[@*]\]\}"
)
"""A variable that holds further arguments, and no value."""
_PROCESSES = {"nnodes": "1", "nproc_per_node": ""}
"""Arguments of torchrun, in either spelling, with its defaults."""
_MOST_ROUNDS = 8
"""Variables that are made of others, and these of others."""


def arguments_of_script(text: str) -> dict[str, str | bool] | None:
    """Return the arguments by name with underscores, flags without a value as True; None of other texts."""
    if not _IS_SCRIPT.search(text):
        return None
    plain = _GOES_ON.sub(" ", _COMMENT.sub(r"\1", text))
    known = {name: _unquoted(value) for name, value in _SET.findall(plain)}
    found: dict[str, str | bool] = {}
    for name, value in _FLAG.findall(plain):
        found[name.replace("-", "_")] = _value(value, known)
    return _as_parsed(found)


def _value(text: str, known: dict[str, str]) -> str | bool:
    value = _unquoted(text)
    if "(" not in value:
        value = value.rstrip(")")
    if (
        not value
        or _ARGUMENTS.fullmatch(value)
        or value in ("|", "||", "&&", ";", "&", ">", "2>&1")
    ):
        return True
    for _ in range(_MOST_ROUNDS):
        after = _USE.sub(lambda match: _used(match, known), value)
        if after == value:
            break
        value = after
    # A variable that holds arguments follows a flag that has no value.
    return True if value.lstrip().startswith("--") or not value.strip() else value


def _used(match: re.Match[str], known: dict[str, str]) -> str:
    name, default = match[1] or match[3], match[2]
    if known.get(name):
        return known[name]
    return _unquoted(default) if default is not None else str(match[0])


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _as_parsed(found: dict[str, str | bool]) -> dict[str, str | bool]:
    """Return the arguments as Megatron's parser leaves them, where a flag sets another name."""
    # Without the flag, the number of groups is ignored.
    found.setdefault("group_query_attention", False)
    if found.pop("no_position_embedding", False):
        found["add_position_embedding"] = False
    if found.pop("use_rotary_position_embeddings", False):
        found["position_embedding_type"] = "rope"
    nodes, of_node = (found.get(name, default) for name, default in _PROCESSES.items())
    if str(nodes).isdecimal() and str(of_node).isdecimal():
        found.setdefault("world_size", str(int(str(nodes)) * int(str(of_node))))
    return found
