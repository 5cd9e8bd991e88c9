"""What answers chats, at the height of text: models of the engine here, models of endpoints elsewhere.

A chat says messages and hears text; token ids and what can only be done with them are parts that a backend
may lack.
"""
