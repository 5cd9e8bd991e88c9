"""The engine's thread: step loop, executor, recovery, output processing, statistics and resident models.

May know every room but the facade and the catalogue above it. The words: a tick is one turn of the loop; it
runs one pass (a forward and sampling) for each model that has work; a step is a tick that was queued ahead.
"""
