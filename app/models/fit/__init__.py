"""What a model takes of this computer and how fast it writes here: measured or expected, in words too."""
