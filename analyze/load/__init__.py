"""From what the user points at to a capture: formats recognised, read once, kept."""
