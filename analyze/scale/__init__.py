"""Runs of many ranks: one small row a rank and step, made in parallel, and what these rows alone tell."""
