"""What a session records, and at which level."""
