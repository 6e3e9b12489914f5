"""The log of requests is bounded and tells whoever listens."""

from meshscope.probe.control.request_log import RequestLog


def test_the_newest_requests_are_kept():
    """Fails when the log grows without bound, or forgets the newest."""
    log, told = RequestLog(), []
    log.tell(lambda changed: told.append(changed.count))
    for number in range(1000):
        log.add("status", 0, number, "x" * 1000)
    kept = log.to_json()
    assert (len(kept), kept[-1]["pid"], log.count, told[-1]) == (256, 999, 1000, 1000)
    assert len(kept[0]["outcome"]) == 120
    log.tell(None)
    log.add("status", 0, 0, "done")
    assert told[-1] == 1000
