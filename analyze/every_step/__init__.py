"""The account of every step of a run that is too large to be accounted for at once."""
