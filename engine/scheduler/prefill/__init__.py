"""How many prompt tokens of whom a tick reads, and how long a prompt will wait. Knows no blocks, no torch."""
