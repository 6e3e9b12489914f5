"""Joins that hold ranks back and that no record shows, found from the times alone."""
