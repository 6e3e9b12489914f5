"""One module per page: plain values in, components out."""
