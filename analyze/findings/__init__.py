"""What is reported: rules in the order in which to look at them, hangs and ends first."""
