"""The recorded program as a graph, and its replay under other durations."""
