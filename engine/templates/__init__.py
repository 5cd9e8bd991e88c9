"""Conversations to token ids by the file's own chat template, rendered in a process that can be stopped.

Knows tokenizer, gguf and api; control tokens in what people write are kept apart here.
"""
