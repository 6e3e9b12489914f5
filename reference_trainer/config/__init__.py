"""What a run is asked to do: settings, presets, faults, and what a launcher says."""
