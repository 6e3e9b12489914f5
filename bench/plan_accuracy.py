"""How far the memory of `meshscope plan` is from what was measured: published rows, none fitted.

Two collections, in ../shared/tables or where MESHSCOPE_TABLES points (their README names sources):

* 8 B200, Llama 3 and DeepSeek models cut to a few layers: allocated, the fullest rank of a stage;
* Megatron-LM's golden values on A100: peak since start of the last rank, above 4 GB.

* 8 AMD GPUs, 64 layers over PP8 (../shared/traces/primus_pp or MESHSCOPE_TRACES): peak by stage. Its model is
  not published, so only the form a + b k is tested: from two stages to the other six.

What a row does not say is stated once for all rows of a kind (tests/truth/foreign/memory_rows.py):
vocabulary by tokenizer, GPUs of release cases. The moments were derived from the rows of one model (Llama 3 70B), what unfused
attention keeps from pairs of golden values with and without it. Rows of the other models then had
the errors printed here. Pipelines on B200 are in no row here: their error is not known.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tests.truth.foreign.memory_rows import (  # noqa: E402
    MemoryRow,
    b200_rows,
    golden_rows,
    write_row,
)

from meshscope.analyze.formulas.planning import PlanSettings, planned_job  # noqa: E402
from meshscope.analyze.formulas.planning.memory import (  # noqa: E402
    chunks_in_flight,
    stage_memory,
)
from meshscope.probe.schema.errors import ConfigError  # noqa: E402
from meshscope.probe.schema.terms import ScheduleKind  # noqa: E402

TABLES = Path(os.environ.get("MESHSCOPE_TABLES") or PROJECT.parent / "shared" / "tables")
TRACES = Path(os.environ.get("MESHSCOPE_TRACES") or PROJECT.parent / "shared" / "traces")
_PIPELINE = "primus_pp/gpu8_layer64_gbs16/pp8"


def b200_errors() -> dict[str, list[float]]:
    """Return relative errors of allocated memory by model; one for each row."""
    return _errors(b200_rows(TABLES))


def golden_errors() -> dict[str, list[float]]:
    """Return relative errors of the last rank by dense or experts, one for each case."""
    return _errors(golden_rows(TABLES))


def _errors(rows: Iterable[MemoryRow]) -> dict[str, list[float]]:
    """Return relative errors by family; a job that cannot be planned is printed and left out."""
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            path = Path(folder) / ("job.toml" if "model" in row.stated else "args.json")
            write_row(row, path)
            try:
                job, _ = planned_job(path, PlanSettings())
            except ConfigError as error:
                print(f"  left out: {row.name}: {error.what}")
                continue
            planned = stage_memory(job)
            for stage, measured in row.peaks.items():
                found[row.family].append(planned[stage].allocated_bytes / measured - 1)
    return found


def pipeline_errors() -> dict[str, list[float]]:
    """Return errors of stages predicted from two others by bytes of a microbatch in flight.

    Two stages between the ends give states and activations of a stage; the ends hold embedding and
    head beside them, which nothing tells here.
    """
    folder = TRACES / _PIPELINE
    if not folder.is_dir():
        return {}
    peaks = []
    for stage in range(8):
        steps = json.loads((folder / f"pp_rank_{stage}.json").read_text())
        peaks.append(max(one["memory"] for name, one in steps.items() if int(name) > 2))
    flight = chunks_in_flight(ScheduleKind.ONE_F_ONE_B, 8, 16, 1)
    found: dict[str, list[float]] = {"between the ends": [], "ends": []}
    for first, second in combinations(range(1, 7), 2):
        slope = (peaks[first] - peaks[second]) / (flight[first] - flight[second])
        for stage in set(range(8)) - {first, second}:
            predicted = peaks[first] + slope * (flight[stage] - flight[first])
            name = "ends" if stage in (0, 7) else "between the ends"
            found[name].append(predicted / peaks[stage] - 1)
    return found


def show(title: str, groups: dict[str, list[float]]) -> None:
    """Print mean and largest absolute error, and the mean with its sign, by group."""
    for name, errors in groups.items():
        sizes = [abs(one) for one in errors]
        print(
            f"{title}, {name}: {len(errors)} values, mean error {sum(sizes) / len(sizes):.2%}, "
            f"largest {max(sizes):.2%}, mean with sign {sum(errors) / len(errors):+.2%}"
        )


def main() -> int:
    """Print the errors; nothing to print is no failure."""
    if not TABLES.is_dir():
        print(f"no tables in {TABLES}: MESHSCOPE_TABLES names another folder")
        return 0
    show("8 B200, allocated", b200_errors())
    show("Megatron golden values on A100 above 4 GB", golden_errors())
    show("PP8 on 8 AMD GPUs, from two stages to the others", pipeline_errors())
    return 0


if __name__ == "__main__":
    sys.exit(main())
