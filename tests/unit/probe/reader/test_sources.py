"""What a manifest says of the sources of the probe."""

from __future__ import annotations

import pytest

from meshscope.analyze.load.recorded import worded
from meshscope.analyze.wording.limits import limit_text
from meshscope.probe.reader.sources import reason_of, source_of
from meshscope.probe.schema.note import note, of_ranks


def said(reason):
    """Return the sentence of a source that was not there."""
    who = of_ranks([1])
    (limit,) = worded([note("missing.source", who=who, reason=reason, **source_of("collectives"))])
    return limit_text(limit)


def test_a_reason_is_a_code_whose_sentence_is_in_the_catalogue():
    """Fails when the manifest's code reaches the reader of a report as it is."""
    found = reason_of({"code": "absent.name", "values": {"name": "torch._C.redispatch"}})
    assert (found.code, dict(found.values)) == ("absent.name", {"name": "torch._C.redispatch"})
    assert "rank 1 (torch._C.redispatch is missing)" in said(found)


def test_a_list_of_names_is_spelled_out():
    """Fails when a report has a list of Python in its sentence."""
    names = {"code": "absent.restored", "values": {"names": ["Work.wait", "dist.barrier"]}}
    assert "(Work.wait, dist.barrier: another tool patched over it)" in said(reason_of(names))


def test_a_text_of_an_older_probe_is_kept():
    """Fails when runs that were recorded before lose the reason."""
    assert "rank 1 (this torch is built without NCCL)" in said(
        reason_of("this torch is built without NCCL")
    )


@pytest.mark.parametrize(
    "found",
    [
        {"code": "absent.from_a_later_version", "values": {}},
        {"code": "absent.name", "values": {}},
        {"code": "absent.name", "values": [1]},
        {"code": "advice.path", "values": {}},
        {"code": ["absent.name"]},
        {"code": "absent.restored", "values": {"names": None}},
        7,
        ["a"],
    ],
)
def test_damage_or_a_later_version_is_shown_as_it_is(found):
    """Fails when one wrong fact of a manifest keeps a run from being opened."""
    assert said(reason_of(found))
