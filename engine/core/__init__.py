"""The engine's thread: step loop, executor, recovery, output processing, statistics and resident models.

May know every room but the facade and the catalogue above it.
"""
