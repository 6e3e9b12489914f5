"""A device that is a queue: events happen when it gets to them."""

BOOT_NS = 7_000_000
"""How far the host's clock is ahead of the device's."""


class Queue:
    """A device that runs what was launched in order, on a clock of its own."""

    def __init__(self):
        self.now_ns = 0
        self.free_at_ns = 0
        self.capturing = False
        self.current = 1
        self.recorded = self.returned = 0

    def host_ns(self):
        """Return the host's time."""
        return self.now_ns + BOOT_NS

    def launch(self, dur_ns):
        """Put work into the queue."""
        self.free_at_ns = max(self.free_at_ns, self.now_ns) + dur_ns

    def stream(self):
        """Return the current stream."""
        return self.current

    def is_capturing(self):
        """Tell whether a graph is captured."""
        return self.capturing

    def record(self, stream):
        """Record an event, which happens when all work before it is done."""
        assert not self.capturing
        assert stream == self.current
        self.recorded += 1
        return max(self.free_at_ns, self.now_ns)

    def is_complete(self, event):
        """Tell whether an event has happened."""
        return event <= self.now_ns

    def elapsed_ns(self, first, second):
        """Return the time between two events, which must have happened."""
        assert max(first, second) <= self.now_ns
        return second - first

    def give_back(self, event):
        """Count events that come back."""
        self.returned += 1
