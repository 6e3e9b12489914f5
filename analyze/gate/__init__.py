"""Gates: is a change slower than its baseline, by how much, where, and how sure is that."""
