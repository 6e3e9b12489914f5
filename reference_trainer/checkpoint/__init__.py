"""Saving and resuming, on the same mesh or another."""
