"""The history file itself: opening it safely, its tables, and conversations as rows."""
