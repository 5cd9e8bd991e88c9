"""The composer: a text area with a shell's keys, chips of what was pasted, completions above it."""
