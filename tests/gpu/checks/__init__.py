"""Checks of the probe on a real GPU, each of which runs in a process of its own."""
