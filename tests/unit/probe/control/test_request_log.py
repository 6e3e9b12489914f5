"""The log of requests is bounded and tells whoever listens."""

from meshscope.probe.control.request_log import RequestLog


def test_the_newest_requests_are_kept():
    """Fails when the log grows without bound, or forgets the newest."""
    log, reported = RequestLog(), []
    log.tell(lambda changed: reported.append(changed.count))
    for number in range(1000):
        log.add("status", 0, number, "x" * 1000)
    kept = log.to_json()
    assert (len(kept), kept[-1]["pid"], log.count, reported[-1]) == (256, 999, 1000, 1000)
    assert len(kept[0]["outcome"]) == 120
    log.tell(None)
    log.add("status", 0, 0, "done")
    assert reported[-1] == 1000
