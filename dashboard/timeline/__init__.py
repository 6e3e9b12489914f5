"""Steps, paths and pixels of the timeline."""
