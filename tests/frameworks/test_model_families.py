"""Models of transformers against what is counted of their configs."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.frameworks.test_frameworks import ENVIRONMENT, OWN

from meshscope.probe.schema.model.hugging_face import FAMILIES

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
ALLOWED = 0.005
NOT_IN_TRANSFORMERS = {
    *("aquila", "baichuan", "deepseek", "exaone", "internlm2", "kimi_k2", "minicpm", "orion"),
    "xverse",
}


def test_a_family_counts_as_its_class_computes() -> None:
    """Fails if the FLOPs or the parameters of a family are off by more than half a percent."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        pytest.skip(f"needs transformers, which `make frameworks` installs into {ENVIRONMENT}")
    script = OWN / "model_families.py"
    done = subprocess.run(
        [str(ENVIRONMENT / "bin" / "python"), str(script), *FAMILIES],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {name: ratios for name, *ratios in map(json.loads, done.stdout.splitlines())}
    assert {name for name, (flops, _) in found.items() if flops is None} == NOT_IN_TRANSFORMERS
    wrong = {
        name: ratios
        for name, ratios in found.items()
        if ratios[0] is not None and any(abs(ratio - 1) > ALLOWED for ratio in ratios)
    }
    assert not wrong
