"""What is asked of a terminal beyond Textual: clipboard, key sequences, descriptors, the log file,
and what must not reach it raw.

Knows settings alone, for the folders; `alt_keys` and `driver` reach into Textual where it offers no way.
"""
