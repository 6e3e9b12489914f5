"""Results as text, JSON, files of other tools."""
