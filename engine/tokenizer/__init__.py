"""Text to token ids and back: vocabularies, merging, incremental detokenizer, stop strings.

Knows gguf and api; no model and no sequence.
"""
