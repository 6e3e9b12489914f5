"""What a page shows, as the query of its address."""
