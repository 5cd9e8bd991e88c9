"""Measuring an engine: workloads, timing at the stream, statistics and the report."""
