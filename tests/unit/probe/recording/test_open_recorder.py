"""The recorder of a rank, and what stands in for it."""

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.open_recorder import NullRecorder, open_recorder
from meshscope.probe.recording.record_heads import carried, collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder
from meshscope.probe.schema.terms import Axis


def test_null_recorder_does_nothing(tmp_path):
    """Fails when code that holds a NullRecorder touches the disk or breaks."""
    recorder = NullRecorder(3)
    recorder.step = 1
    assert recorder.register_group("a", [0], "", Axis.TP) == -1
    assert recorder.register_dtype("f32") == -1
    assert recorder.issue_collective(collective_head(0, 0, 0), 0, 0, 0) == -1
    assert recorder.issue_p2p(p2p_head(0, 0, 0, 0), 0, 0, 0, carried(1, 1)) == -1
    recorder.record_step(0, 0, 0)
    recorder.record_span(span_head(0), 0, 0, 0)
    recorder.complete(0, 0, 0, 0)
    recorder.record_memory(0, 0, rss_bytes=1)
    recorder.record_microbatch(0, 1, 1)
    recorder.count("x")
    recorder.annotate("x", 1)
    recorder.flush()
    recorder.close()
    assert (recorder.rank, recorder.reason) == (3, "")
    assert list(tmp_path.iterdir()) == []


def test_open_recorder_records(run_path):
    """Fails when the entry point of the session gives a recorder that does not record."""
    recorder = open_recorder(run_path, 1, device_uuid="GPU-1")
    assert type(recorder) is Recorder
    recorder.record_step(0, 1, 2)
    recorder.close()
    capture = read_run(run_path)
    assert capture.ranks == (1,)
    assert capture.rank_manifests[1]["device_uuid"] == "GPU-1"
