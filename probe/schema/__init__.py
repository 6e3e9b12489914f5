"""The one contract between the probe, the analyses and the dashboard."""
