"""A chat that outgrows what its model reads: where it can be cut, and summaries in place of what is left out.

What is left out stays in the chat and its history; no message is ever deleted here."""
