"""Passes of few tokens that are recorded, and what records them before anybody waits."""
