"""Where other programs keep model files: one file a program, and the table of them. Nothing is written.

Knows the engine's listing of folders; no settings of this app, and no screen.
"""
