"""A gate's result as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from meshscope.probe.schema.printable import printable


def gate_to_junit(result: dict[str, Any]) -> str:
    """Return the JSON form of a gate as JUnit XML: one test a check, and one for the whole.

    What cannot be known is skipped there; a gate that cannot tell as a whole is an error.
    """
    suite = ElementTree.Element("testsuite", name="meshscope gate")
    whole = {"metric": "verdict", "verdict": result["verdict"], "why": result["why"]}
    counts = dict.fromkeys(("failure", "error", "skipped"), 0)
    for check in (whole, *result["checks"]):
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=check["metric"])
        kind = {"fail": "failure", "inconclusive": "skipped", "incomparable": "error"}.get(
            check["verdict"]
        )
        if check is whole and kind == "skipped":
            kind = "error"
        why = printable(check["why"])
        if kind is None:
            ElementTree.SubElement(case, "system-out").text = why
            continue
        ElementTree.SubElement(case, kind, message=why)
        counts[kind] += 1
    suite.set("tests", str(len(result["checks"]) + 1))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
