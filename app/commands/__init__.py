"""The commands, one module each with `add_arguments(parser)` and `run(args) -> exit code`.

A module is imported only when its command was named, and it imports the engine only in `run`.
"""
