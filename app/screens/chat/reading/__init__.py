"""The chat screen's actions for reading: finding, going by turns, code blocks, links, selecting by keys."""
