"""Commands that work on the kept chats: into files and out of them. May know the history, no engine."""
