"""A gate's result as a code quality report of GitLab.

Form: docs.gitlab.com, "Code Quality", section on custom tools: a list of description, check_name, fingerprint,
severity and location.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from meshscope.probe.schema.printable import printable

_SEVERITIES = {"fail": "major", "incomparable": "major", "inconclusive": "minor"}
_MOST = 200


def gate_to_gitlab(result: dict[str, Any], source: Path) -> str:
    """Return the checks that did not pass as issues; none where the whole passes.

    Args:
        result: The JSON form of a gate.
        source: The file of the baseline or budget, at which GitLab shows them.
    """
    checks = [check for check in result["checks"] if check["verdict"] == "fail"]
    if result["verdict"] in ("inconclusive", "incomparable"):
        whole = {"metric": "verdict", "verdict": result["verdict"], "why": result["why"]}
        undecided = [check for check in result["checks"] if check["verdict"] == "inconclusive"]
        checks = [whole, *checks, *undecided]
    issues = [_issue(check, source) for check in checks[:_MOST]]
    return json.dumps(issues, indent=2) + "\n"


def _issue(check: dict[str, Any], source: Path) -> dict[str, Any]:
    name = printable(str(check["metric"]))
    return {
        "description": f"{name}: {printable(check['why'])}",
        "check_name": f"meshscope-gate/{name}",
        # The same check stays the same issue when its numbers move.
        "fingerprint": hashlib.sha256(f"meshscope gate {name}".encode()).hexdigest(),
        "severity": _SEVERITIES[check["verdict"]],
        "location": {"path": printable(source.as_posix()), "lines": {"begin": 1}},
    }
