"""Faults that can be injected, and the log of what was."""
