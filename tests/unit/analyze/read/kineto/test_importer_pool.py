"""Files of several ranks, read in several processes."""

import json

from meshscope.analyze.read.input_paths import input_file
from meshscope.analyze.read.kineto.importer import read_in_processes
from meshscope.analyze.read.reading import Reading
from meshscope.analyze.wording.message import error_to_json, message_to_json


def test_an_error_of_another_process_keeps_its_codes_and_values(tmp_path):
    """A program would get a mere text for a large file, and the code for a small one."""
    for rank, events in enumerate(([], [{"ph": "X", "name": "mm", "cat": "kernel"}])):
        text = json.dumps({"schemaVersion": 1, "traceEvents": events})
        (tmp_path / f"rank{rank}.json").write_text(text)
    files = [input_file(path) for path in sorted(tmp_path.glob("*.json"))]
    first, second = read_in_processes(files, tmp_path, Reading(workers=2), {})
    said = error_to_json(first)["error_messages"]
    assert said["what"]["code"] == "refused.several"
    assert [one["code"] for one in said["what"]["values"]["items"]] == [
        "refused.no_profiler_events"
    ]
    assert said["remedy"]["code"] == "advice.let_profiler_finish"
    assert message_to_json(second.said["what"]) == {
        "code": "refused.timeless",
        "values": {"events": 1},
    }
