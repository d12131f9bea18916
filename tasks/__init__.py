"""Probing and logical inference: their data, their models, and the one loop that trains a
classifier."""
