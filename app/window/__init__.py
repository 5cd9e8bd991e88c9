"""The application itself: screens, themes, start and leaving.

May know every room but the command line, which starts it, and the benchmark.
"""
