"""Logits themselves: log-probabilities of what was chosen, and those of a whole prompt."""
