"""The documents, the figures in them, and what makes pages of both."""
