"""The truth suite: seeded synthetic jobs with known faults, and how well they are diagnosed."""
