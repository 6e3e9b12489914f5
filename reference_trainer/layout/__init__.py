"""Members of groups: pure integers."""
