"""What a caller says and hears: requests, options, statistics, errors, one request's stream.

Plain data, without torch. Knows nothing of the engine's other rooms; every one of them may know it.
"""
