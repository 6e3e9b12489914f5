"""The Prometheus text: units, labels, and what is left out."""

from meshscope.probe.agent.live import RankFigures
from meshscope.probe.agent.local_ranks import LiveFigures
from meshscope.probe.agent.metrics import fault_lines, fault_of, live_lines, metric, sample_lines


def test_what_is_not_known_has_no_line():
    """Fails when an unknown value is shown as zero or NaN."""
    rows = [{"uuid": "GPU-a", "power_w": 300.5, "remap_failed": None}, {"uuid": "GPU-b"}]
    assert sample_lines("device_sample", rows) == [
        "# HELP meshscope_device_power_w power draw (W)",
        "# TYPE meshscope_device_power_w gauge",
        'meshscope_device_power_w{uuid="GPU-a"} 300.5',
    ]


def test_counters_are_counters():
    """Fails when a rate over a counter that was reset is negative in Prometheus."""
    lines = sample_lines("link_sample", [{"port": "mlx5_0/1", "tx_bytes": 1 << 62, "layer": "x"}])
    assert lines[1:] == [
        "# TYPE meshscope_link_tx_bytes counter",
        f'meshscope_link_tx_bytes{{port="mlx5_0/1"}} {1 << 62}',
    ]


def test_names_from_the_system_are_escaped():
    """Fails when an odd name breaks the text."""
    lines = metric("a", "gauge", "b\nc", [({"x": 'q"\\\n'}, 1.0)])
    assert lines == ["# HELP a b\\nc", "# TYPE a gauge", 'a{x="q\\"\\\\\\n"} 1']


def test_live_figures():
    """Fails when a figure of the run is missing though it is known, or shown though it is not."""
    known = RankFigures(
        step=7, step_time_s=0.5, tokens_per_s=None, stage=0, work_s=0.25, bubble_frac=None
    )
    text = live_lines(LiveFigures(ranks={3: known}, scores={3: 0.1}, mfu=0.4, run_id="a"))
    shown = [line for line in text if not line.startswith("#")]
    assert shown == [
        'meshscope_run_info{run_id="a"} 1',
        'meshscope_step{rank="3"} 7',
        'meshscope_step_time_seconds{rank="3"} 0.5',
        'meshscope_work_seconds{rank="3"} 0.25',
        'meshscope_straggler_score{rank="3"} 0.1',
        "meshscope_mfu 0.4",
    ]
    assert live_lines(LiveFigures(ranks={}, scores={}, mfu=None)) == []


def test_every_live_figure_is_documented(project_dir):
    """Fails when a metric is served that the page of the agent does not explain."""
    page = (project_dir / "docs" / "agent.md").read_text(encoding="utf-8")
    known = RankFigures(
        step=7, step_time_s=0.5, tokens_per_s=1.0, stage=0, work_s=0.25, bubble_frac=0.1
    )
    text = live_lines(LiveFigures(ranks={3: known}, scores={3: 0.1}, mfu=0.4, run_id="a"))
    text += fault_lines({("GPU-a", "xid", "79"): 1})
    names = {line.split()[2] for line in text if line.startswith("# TYPE")}
    assert len(names) == 9
    assert not [name for name in names if f"| `{name}` |" not in page]


def test_faults_are_counted_by_number():
    """Fails when an alert cannot tell a dead device from an error of the program."""
    events = [{"uuid": "GPU-a", "kind": "xid", "code": 79}, {"uuid": "GPU-a", "kind": "lost"}]
    counts = {fault_of(event): number for number, event in enumerate(events, 1)}
    assert fault_lines(counts)[2:] == [
        'meshscope_device_faults_total{uuid="GPU-a",kind="lost",code=""} 2',
        'meshscope_device_faults_total{uuid="GPU-a",kind="xid",code="79"} 1',
    ]
    assert fault_lines({}) == []
