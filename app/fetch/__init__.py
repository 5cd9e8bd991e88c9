"""Getting models: from a word that a person writes to a checked model file in the models' folder.

`sources.make_plan` finds out what is to be fetched, `fetch.Fetch` fetches it by `app.transfer`. Knows
settings and the engine's public face; no chats, no widgets, and nothing here is printed.
"""
