"""What ranks show at each instant of a step: the pieces of a timeline, whoever draws them."""
