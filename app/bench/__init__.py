"""Measuring an engine: workloads, timing at the stream, statistics and the report.

Knows the engine alone; the command line measures at length, and the app a loaded model beside its chats.
"""
