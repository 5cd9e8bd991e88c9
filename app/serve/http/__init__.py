"""Reading requests within limits, answering whole or as events, errors in each protocol's shape.

Knows nothing of models.
"""
