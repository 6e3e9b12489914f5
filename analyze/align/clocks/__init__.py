"""Whether the clocks of a capture agree, and how one is mapped to another."""
