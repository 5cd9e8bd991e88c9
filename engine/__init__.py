"""What turns requests into tokens: scheduler, KV blocks, model runner, GGUF files, text and tokens."""
