"""The page for users of other tools: what it names is in the results of the commands."""

import re

import pytest
from tests.synthetic import MS, Job, capture
from tests.tables import trace_of

from meshscope.analyze import diagnose
from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.comparison import compare, side_of_account
from meshscope.analyze.findings.critical_path import critical_path
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.output.json import (
    breakdown_to_json,
    collectives_to_json,
    comparison_to_json,
    critical_path_to_json,
    diagnosis_to_json,
    kernels_to_json,
    prediction_to_json,
)
from meshscope.analyze.tables.classes import CLASSES
from meshscope.probe.schema.layout import ParallelLayout

ROW = re.compile(r"^\|[^|]*\|[^|]*`meshscope ([\w-]+)[^|]*\|(.*)\|$", re.MULTILINE)
KEY = re.compile(r"`([\w.*]+)`")
ELSEWHERE = {"shapes", "hta.open"}
"""What the page names beside keys of JSON."""


def with_kernels():
    """Return two steps with a product, a copy and a call that waits."""
    names = ["aten::mm", "gemm", "cudaDeviceSynchronize"]
    return trace_of(
        name=[{"name_id": at, "name": name} for at, name in enumerate(names)],
        step=[{"step": step, "start_ns": 1000 * step, "dur_ns": 1000} for step in (0, 1)],
        op=[{"op_id": 0, "name_id": 0, "start_ns": 0, "dur_ns": 5}],
        runtime_call=[{"name_id": 2, "start_ns": 50, "dur_ns": 20}],
        kernel=[
            {"name_id": 1, "step": step, "op_id": 0, "launch_ns": 0, "dur_ns": 100}
            | {"start_ns": 1000 * step}
            for step in (0, 1)
        ],
    )


@pytest.fixture(scope="module")
def results():
    """Return a result of each command."""
    job = capture(Job(layout=ParallelLayout(dp=2), steps=3), lambda *_: 10 * MS)
    account = measure(job)
    changes = parse_changes(["stragglers"], [])
    kernels = with_kernels()
    side = side_of_account(measure(kernels))
    return {
        "breakdown": breakdown_to_json(kernels),
        "kernels": kernels_to_json(kernels),
        "compare": comparison_to_json(compare(side, side)),
        "collectives": collectives_to_json(job),
        "diagnose": diagnosis_to_json(diagnose(job)),
        "critical-path": critical_path_to_json(critical_path(account), ()),
        "whatif": prediction_to_json(changes, predict(account, changes), ()),
    }


def has(result, parts):
    """Return whether a result has a key; a part ``*`` stands for any."""
    if not parts:
        return True
    inner = result.values() if isinstance(result, dict) else result
    if parts[0] == "*":
        return any(has(one, parts[1:]) for one in inner)
    if not isinstance(result, dict):
        return False
    return parts[0] in result and has(result[parts[0]], parts[1:])


def has_anywhere(result, name):
    """Return whether a key is somewhere in a result."""
    if not isinstance(result, dict | list):
        return False
    inner = result.values() if isinstance(result, dict) else result
    return has(result, [name]) or any(has_anywhere(one, name) for one in inner)


def test_every_key_that_the_page_names_is_there(results, project_dir):
    """Fails when the page sends the user of another tool to a figure that a command does not give."""
    checked = 0
    for verb, cell in ROW.findall((project_dir / "docs/other-tools.md").read_text("utf-8")):
        for key in set(KEY.findall(cell)) - ELSEWHERE - set(CLASSES):
            if verb in results:
                found = has(results[verb], key.split(".")) or has_anywhere(results[verb], key)
                assert found, (verb, key)
                checked += 1
    assert checked > 20
