"""The command line, one module a command with `add_arguments(parser)` and `run(args) -> exit code`.

A module is imported only when its command was named, and it imports the engine only in `run`. May know
every room; of the window it knows how to start it, imported only then.
"""
