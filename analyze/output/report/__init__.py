"""The report of a run that is mailed: one document, with pictures of what it says."""
