"""The published numbers, what is measured beside them, and the figures."""
