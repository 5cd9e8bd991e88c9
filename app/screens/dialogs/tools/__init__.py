"""Dialogs about tools: whether a call may run, and which servers a chat has switched on."""
