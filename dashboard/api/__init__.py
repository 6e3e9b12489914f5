"""The JSON twins of pages, their tables as CSV, and windows as traces."""
