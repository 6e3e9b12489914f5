"""From what the user points at to a capture: formats told apart, read once, kept."""
