"""`python -m app` is the command line."""

from app.cli.program import program

if __name__ == "__main__":
    program()
