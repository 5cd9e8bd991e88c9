"""What fills the window or lies over it: the chat screen, and dialogs; and what they are handed."""
