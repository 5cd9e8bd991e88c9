"""What a user can choose: the settings file, keys, themes, folders, and words for sizes and times.

The lowest room: knows nothing of the app's others, and no Textual.
"""
