"""What a message is written with: slash commands, kept prompts, and files that are attached to it.

It knows no widget and no chat; whatever reads files here is called on another thread than the UI's.
"""
