"""What the chat screen does about the app's looks and the terminal around it.

May know the settings, what the screen stands on, and what dialogs over settings are asked with.
"""
