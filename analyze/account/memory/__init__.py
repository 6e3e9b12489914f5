"""Memory by stage, its growth, and stages that hold more than the others."""
