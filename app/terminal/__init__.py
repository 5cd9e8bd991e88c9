"""What is asked of a terminal beyond Textual: clipboard, key sequences, descriptors, the log file.

Knows settings alone, for the folders; `alt_keys` corrects a table of Textual's.
"""
