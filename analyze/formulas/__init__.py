"""What follows from a model, a mesh and a schedule alone: no run is looked at."""
