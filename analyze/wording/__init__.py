"""Words for counts, classes and places, and tables of text."""
