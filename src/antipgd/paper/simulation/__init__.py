"""Small problems, many runs at once: what of the paper needs no torch."""
