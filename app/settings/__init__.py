"""What a user can choose: the settings file, keys, themes, folders, and words for sizes and times.

Knows nothing of the app's other rooms; no Textual.
"""
