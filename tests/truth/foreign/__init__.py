"""The diagnosis tried on inputs that meshscope did not make."""
