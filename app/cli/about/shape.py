"""The command line as its parser has it: commands, options and what each takes, for whoever tells of them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

_PATHS = frozenset({"DIR", "FILE", "MODEL"})


@dataclass(frozen=True, slots=True)
class Option:
    """One option or, without names, what stands without one. `value` is how its value is called."""

    names: tuple[str, ...]
    value: str
    help: str
    choices: tuple[str, ...] = ()

    @property
    def takes_path(self) -> bool:
        """Whether its value is a file or folder."""
        return not _PATHS.isdisjoint(self.value.split("|"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its options; the program itself has no name."""

    name: str
    help: str
    options: tuple[Option, ...]


def commands_of(parser: argparse.ArgumentParser) -> list[Command]:
    """Return the program itself and then its commands."""
    found = [Command("", parser.description or "", _options(parser))]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [
                Command(choice.dest, choice.help or "", _options(action.choices[choice.dest]))
                for choice in action._choices_actions
            ]
    return found


def _options(parser: argparse.ArgumentParser) -> tuple[Option, ...]:
    return tuple(
        _option(action)
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
    )


def _option(action: argparse.Action) -> Option:
    takes = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    choices: Sequence[object] = tuple(action.choices or ())
    text = (action.help or "").replace("%%", "%")
    return Option(tuple(action.option_strings), metavar if takes else "", text, tuple(map(str, choices)))
