"""Process groups, and layers split over them."""
