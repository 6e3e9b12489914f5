"""One session: its hooks, its level, its end."""
