"""Conversations to token ids by the file's own chat template, rendered in a sandbox.

Knows tokenizer, gguf and api; control tokens in what people write are kept apart here.
"""
