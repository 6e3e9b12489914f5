"""Arguments as a launch script or a command line gives them: ``--num-layers 32 --swiglu``.

A script is not run: variables that it sets to plain values are put in, and defaults of ``${NAME:-8}`` where it
sets none. What else it computes stays as the text that it is, so that an error can name it. So does what
branches set to unlike values: only the shell knows which of them it takes::

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
    r"(?m)(?:^|[;)]|&&|\bthen\b|\belse\b)[ \t]*(?:export\s+|local\s+)?([A-Za-z_]\w*)="
    r"(\"[^\"\n]*\"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s\"';(]*)(?=[ \t]*(?:;|$))"
)
_BRANCH = re.compile(r"(?m)(?:^|[;&|]|\bthen\b|\belse\b|\bdo\b)[ \t]*(if|case|fi|esac)(?![\w=-])")
_USE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_ARGUMENTS = re.compile(
    r"\$\{?\w*(?:ARGS|OPTS|OPTIONS|FLAGS|PARAMS)\w*(?:\[[@*]\])?\}?|.*\[[@*]\]\}"
)
"""A variable that holds further arguments, and no value."""
_PROGRAM = re.compile(r"\bpretrain_\w+(?=\.py\b)")
_PROCESSES = {"nnodes": "1", "nproc_per_node": ""}
"""Arguments of torchrun, in either spelling, with its defaults."""
_MOST_ROUNDS = 8
"""Variables that are made of others, and these of others."""


def arguments_of_script(text: str) -> dict[str, str | bool] | None:
    """Return the arguments by name with underscores, flags without a value as True; None of other texts."""
    if not _IS_SCRIPT.search(text):
        return None
    plain = _GOES_ON.sub(" ", _COMMENT.sub(r"\1", text))
    variables = {name: _without_itself(name, of) for name, of in _settings(_SET, plain).items()}
    known = {name: of[0] if len(of) == 1 else None for name, of in variables.items()}
    found: dict[str, str | bool] = {}
    for name, texts in _settings(_FLAG, plain).items():
        values = dict.fromkeys(_value(value, known) for value in texts)
        found[name.replace("-", "_")] = (
            next(iter(values)) if len(values) == 1 else " or ".join(map(str, values))
        )
    program = _PROGRAM.search(plain)
    if program is not None:
        found["program"] = program[0]
    return _as_parsed(found)


def _settings(pattern: re.Pattern[str], text: str) -> dict[str, list[str]]:
    """Return the values that each name can have at the end: several where branches set it."""
    borders = [(match.start(1), match[1]) for match in _BRANCH.finditer(text)]
    found: dict[str, list[str]] = {}
    for match in pattern.finditer(text):
        before = [word for place, word in borders if place < match.start(1)]
        depth = sum(1 if word in ("if", "case") else -1 for word in before)
        is_open = depth > 0 or match[0].startswith("&&")
        found[match[1]] = [*(found.get(match[1], []) if is_open else []), match[2] or ""]
    return found


def _without_itself(name: str, values: list[str]) -> list[str]:
    """Return the values that differ; of ``A=${A:-8}`` the default."""
    found: dict[str, None] = {}
    for value in map(_unquoted, values):
        match = _USE.fullmatch(value)
        own = match is not None and name == (match[1] or match[3])
        found[_unquoted(match[2] or "") if match is not None and own else value] = None
    return list(found)


def _value(text: str, known: dict[str, str | None]) -> str | bool:
    value = _unquoted(text)
    if "(" not in value:
        value = value.rstrip(");")
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


def _used(match: re.Match[str], known: dict[str, str | None]) -> str:
    name, default = match[1] or match[3], match[2]
    value = known.get(name, "")
    if value is None:
        return str(match[0])
    if value:
        return value
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
