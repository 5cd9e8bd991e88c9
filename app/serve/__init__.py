"""The engine over HTTP, for other programs: requests of several protocols, all sequences of one engine.

`protocols` says what each protocol asks for and how it is answered, `http` what is read and written and
within which limits; between them every request is the same. Knows chat and models, no screen.
"""
