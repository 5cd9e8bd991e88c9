"""Measuring an engine: workloads, timing at the stream, statistics and the report.

Knows the engine alone; the command line starts it and no other room uses it.
"""
