"""Communication as events: members matched, their waits and their bandwidth."""
