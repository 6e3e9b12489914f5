"""Reads a run directory back into the declared tables, as far as it is good."""
