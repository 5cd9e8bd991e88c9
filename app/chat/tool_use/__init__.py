"""Tools in a turn: calls in an answer's stream, asking the reader, running, and results as messages."""
