"""The server: where it listens, who may ask, and the application it serves."""
