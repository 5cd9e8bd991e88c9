"""The chat screen's actions on what is thought, what goes on and what is still read of a chat."""
