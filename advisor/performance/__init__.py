"""How long a pass takes and how much memory it needs."""
