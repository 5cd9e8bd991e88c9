"""What stands in a chat in which nothing was said: a greeting, keys, and models to fetch."""
