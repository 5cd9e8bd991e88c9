"""Plain mode: chats line by line, for screen readers, dumb terminals and logs.

Text only comes after text, nothing moves the cursor; what is typed is a line. Stands on the same chats,
history and models as the screens, and knows no widget.
"""
