"""The documents, and the code that builds pages of them."""
