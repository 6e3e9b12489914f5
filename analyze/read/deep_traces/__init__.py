"""Deep traces of a run: which steps they hold, and their rows on its clock."""
