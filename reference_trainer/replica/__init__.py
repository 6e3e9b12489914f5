"""What one rank trains with: weights, gradients, their sums, the pipeline."""
