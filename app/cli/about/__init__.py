"""What the program tells of itself: completions for shells and a manual page, made of the parser.

May know the command line's parser, the actions and the settings.
"""
