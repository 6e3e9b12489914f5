"""Values in the form in which they leave the server: words, JSON, pictures."""
