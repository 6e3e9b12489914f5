"""What each page says, as plain values: pages draw them, the JSON twins send them."""
