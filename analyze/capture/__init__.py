"""A capture in memory and on disk: its tables, wherever they are kept."""
