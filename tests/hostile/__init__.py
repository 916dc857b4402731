"""Hostile inverses: drawn parameters and noise at the edges of floating point, through every backend that runs here."""
