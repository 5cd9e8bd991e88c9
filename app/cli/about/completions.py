"""`tui-chat completions`: what bash, zsh and fish complete, made of the parser itself."""

import argparse
import re
import shlex
import sys

from app.cli.about.shape import Command, Option, commands_of

SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "tui-chat"
_HOW = {
    "bash": 'put this into ~/.bashrc:  eval "$(tui-chat completions bash)"',
    "zsh": 'put this into ~/.zshrc, behind compinit:  eval "$(tui-chat completions zsh)"',
    "fish": "tui-chat completions fish > ~/.config/fish/completions/tui-chat.fish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell."""
    from app.cli.program import COMMANDS, build_parser

    sys.stdout.write(script(args.shell, commands_of(build_parser(tuple(COMMANDS)))))
    return 0


def script(shell: str, commands: list[Command]) -> str:
    """Return the completion script of a shell."""
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)
    return f"# Completions of {_PROGRAM} for {shell}: {_HOW[shell]}\n{made}"


def _bash(commands: list[Command]) -> str:
    cases = "".join(
        f"    {command.name or '-'})\n"
        f"      words={shlex.quote(' '.join(_words(command, commands)))}\n"
        f"      values={shlex.quote(_bash_pattern(command))} ;;\n"
        for command in commands
    )
    named = "|".join(command.name for command in commands if command.name)
    chosen = "".join(
        f"    {command.name or '-'}:{name}) COMPREPLY=($(compgen -W {shlex.quote(' '.join(option.choices))} "
        '-- "$current")); return ;;\n'
        for command in commands
        for option in command.options
        for name in option.names or ("",)
        if option.choices
    )
    return f"""_tui_chat() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command=- word words values
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in {named}) command="$word"; break ;; esac
  done
  case "$command" in
{cases}  esac
  [[ "$current" != -* && "$previous" == "$command" ]] && previous=
  case "$command:$previous" in
{chosen}  esac
  if [[ -n "$previous" && " $values " == *" $previous "* ]]; then
    COMPREPLY=($(compgen -f -- "$current"))
  elif [[ "$current" == -* || "$command" == - ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _tui_chat {_PROGRAM}
"""


def _bash_pattern(command: Command) -> str:
    return " ".join(name for option in command.options if option.value for name in option.names)


def _words(command: Command, commands: list[Command]) -> list[str]:
    words = [name for option in command.options for name in option.names]
    return words + ([other.name for other in commands if other.name] if not command.name else [])


def _zsh(commands: list[Command]) -> str:
    top, *others = commands
    listed = "\n".join(f"    {shlex.quote(f'{command.name}:{_plain(command.help)}')}" for command in others)
    cases = "\n".join(
        f"      {command.name}) _arguments {' '.join(_zsh_specs(command))} ;;" for command in others
    )
    return f"""#compdef {_PROGRAM}
_tui_chat() {{
  local -a commands
  local line state
  commands=(
{listed}
  )
  _arguments -C {" ".join(_zsh_specs(top))} '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument) case $line[1] in
{cases}
    esac ;;
  esac
}}
if [ "$funcstack[1]" = _tui_chat ]; then _tui_chat "$@"; else compdef _tui_chat {_PROGRAM}; fi
"""


def _zsh_specs(command: Command) -> list[str]:
    specs = []
    for option in command.options:
        text = re.sub(r"[\[\]:\\]", " ", _plain(option.help))
        value = f":{option.value.lower()}:{_zsh_values(option)}" if option.value else ""
        if not option.names:
            specs.append(shlex.quote(f"*:{option.value.lower()}:{_zsh_values(option)}"))
        specs += [shlex.quote(f"*{name}[{text}]{value}") for name in option.names]
    return specs


def _zsh_values(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return "_files" if option.takes_path or not option.names else " "


def _fish(commands: list[Command]) -> str:
    lines = [f"complete -c {_PROGRAM} -f"]
    for command in commands:
        if command.name:
            lines.append(
                f"complete -c {_PROGRAM} -n __fish_use_subcommand -a {command.name} "
                f"-d {shlex.quote(_plain(command.help))}"
            )
        when = f"__fish_seen_subcommand_from {command.name}" if command.name else "__fish_use_subcommand"
        lines += [line for option in command.options for line in _fish_lines(option, when)]
    return "\n".join(lines) + "\n"


def _fish_lines(option: Option, when: str) -> list[str]:
    start = f"complete -c {_PROGRAM} -n {shlex.quote(when)}"
    values = f" -a {shlex.quote(' '.join(option.choices))}" if option.choices else ""
    if not option.names:
        return [start + (values or " -F")]
    names = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in option.names)
    takes = f" -r{values or (' -F' if option.takes_path else '')}" if option.value else ""
    return [f"{start}{names}{takes} -d {shlex.quote(_plain(option.help))}"]


def _plain(text: str) -> str:
    return " ".join(text.replace("'", "’").split())
