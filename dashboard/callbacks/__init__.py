"""What happens on a click, a key or a change of the address."""
