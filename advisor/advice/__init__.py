"""Which draft to use, and how to start it."""
