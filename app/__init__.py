"""What a person sees: screens, widgets, conversations, history, settings and the command line."""
