"""The machines below the mesh: what crosses between hosts, what that costs, which order is better."""
