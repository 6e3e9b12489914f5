"""The Prometheus text of the newest samples and the live figures of the run.

A value that is not known is left out, with its line: there is no NaN and no zero in its
place. A reader that has stopped answering takes its values with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..schema.host_tables import DEVICE_SAMPLE, HOST_SAMPLE, LINK_SAMPLE
from .live import RankFigures
from .local_ranks import LiveFigures
from .readings import Row

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = {"uuid", "port", "layer", "host", "time_ns"}
_COUNTERS = frozenset(
    {
        "energy_j",
        "nvlink_tx_bytes",
        "nvlink_rx_bytes",
        "pcie_tx_bytes",
        "pcie_rx_bytes",
        "ecc_corrected",
        "ecc_uncorrected",
        "tx_bytes",
        "rx_bytes",
        "wait",
        "errors",
        "retries",
        "congestion",
        "link_downed",
        "swap_in_bytes",
        "swap_out_bytes",
    }
)
_SAMPLED = {
    "device_sample": ("meshscope_device_", "uuid", DEVICE_SAMPLE),
    "link_sample": ("meshscope_link_", "port", LINK_SAMPLE),
    "host_sample": ("meshscope_host_", "", HOST_SAMPLE),
}

Sample = tuple[Mapping[str, str], float]
Fault = tuple[str, str, str]
"""Device, kind and number of a fault, as labels."""


def sample_lines(table: str, rows: Sequence[Row]) -> list[str]:
    """Return the text of the newest rows of a table, one metric a column."""
    if table not in _SAMPLED:
        return []
    prefix, label, spec = _SAMPLED[table]
    lines: list[str] = []
    for column in spec.columns:
        if column.name in _LABELS:
            continue
        samples = [
            ({label: str(row[label])} if label else {}, float(value))
            for row in rows
            if isinstance(value := row.get(column.name), int | float)
        ]
        kind = "counter" if column.name in _COUNTERS else "gauge"
        lines += metric(
            f"{prefix}{column.name}", kind, f"{column.meaning} ({column.unit})", samples
        )
    return lines


def fault_of(event: Row) -> Fault:
    """Return what makes a fault of a device the same as another one."""
    code = event.get("code")
    return str(event.get("uuid")), str(event.get("kind")), "" if code is None else str(code)


def fault_lines(counts: Mapping[Fault, int]) -> list[str]:
    """Return the text of how often each fault was reported."""
    samples = [
        ({"uuid": uuid, "kind": kind, "code": code}, float(count))
        for (uuid, kind, code), count in sorted(counts.items())
    ]
    meaning = "faults that the driver reported since the agent began (1)"
    return metric("meshscope_device_faults_total", "counter", meaning, samples)


def live_lines(live: LiveFigures) -> list[str]:
    """Return the text of what the ranks of this node are doing."""
    ranks = live.ranks

    def each(value_of: str) -> list[Sample]:
        found = ((rank, getattr(figures, value_of)) for rank, figures in ranks.items())
        return [({"rank": str(rank)}, float(v)) for rank, v in found if v is not None]

    assert set(_RANK_METRICS) <= set(RankFigures.__dataclass_fields__)
    lines: list[str] = []
    if live.run_id:
        # Which run the other lines are of; as a label of each it would make new series for each run.
        lines += metric(
            "meshscope_run_info", "gauge", "the run (1)", [({"run_id": live.run_id}, 1.0)]
        )
    for name, (metric_name, meaning) in _RANK_METRICS.items():
        lines += metric(metric_name, "gauge", meaning, each(name))
    scores = [({"rank": str(rank)}, score) for rank, score in sorted(live.scores.items())]
    lines += metric(
        "meshscope_straggler_score",
        "gauge",
        "own work over the median of the others in the stage, minus 1 (1)",
        scores,
    )
    if live.mfu is not None:
        lines += metric(
            "meshscope_mfu",
            "gauge",
            "model FLOPs over the peak of all devices, in the slowest local rank's step (1)",
            [({}, live.mfu)],
        )
    return lines


_RANK_METRICS = {
    "step": ("meshscope_step", "last complete optimizer step (id)"),
    "step_time_s": ("meshscope_step_time_seconds", "median length of the last steps (s)"),
    "tokens_per_s": ("meshscope_tokens_per_second", "tokens of the rank's replica (1/s)"),
    "work_s": (
        "meshscope_work_seconds",
        "median time in forward and backward of a step, without waits (s)",
    ),
    "bubble_frac": (
        "meshscope_bubble_frac",
        "share of a step in which the host waited for messages of the pipeline (1)",
    ),
}


def metric(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> list[str]:
    """Return the lines of one metric, none where it has no sample."""
    lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    if not lines:
        return []
    return [f"# HELP {name} {_escaped(meaning)}", f"# TYPE {name} {kind}", *lines]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{key}="{_quoted(value)}"' for key, value in labels.items())
    return f"{{{inside}}}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
