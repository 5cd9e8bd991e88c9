"""Running a divided model: KV on both sides, and long passes whose weights cross over."""
