"""What the engine's thread tells of itself: statistics, a close look when asked for, the last ticks."""
