"""Why the time was lost, and what a change would return: replay, slow ranks, causes, what-if."""
