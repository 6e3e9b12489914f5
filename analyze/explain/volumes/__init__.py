"""What a step has to send by formula, beside what was recorded, with the reason of a difference."""
