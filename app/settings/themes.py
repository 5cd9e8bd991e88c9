"""Colour themes as data files: those of the package and those in the person's own folder.

A theme file is TOML: `name`, `description`, `dark`, `ansi`, a table `colors` with the roles in
`COLOR_ROLES` (each "#rrggbb", or where `ansi` is true one of `ANSI_COLORS`), a table `variables` that may
replace any of `VARIABLE_DEFAULTS`, the chats' colours or Textual's own variables, and `code.style`, the
name of a pygments style. A broken file becomes a warning and is skipped.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.settings.chat_colors import NAMES, chat_colors

COLOR_ROLES = (
    "primary",
    "secondary",
    "accent",
    "warning",
    "error",
    "success",
    "foreground",
    "background",
    "surface",
    "panel",
)
DEFAULT_CODE_STYLE = "native"
VARIABLE_DEFAULTS: Mapping[str, str] = {
    "tab-streaming": "success",
    "tab-reading": "warning",
    "tab-queued": "secondary",
    "tab-unread": "accent",
    "tab-error": "error",
    "meter-used": "primary",
    "meter-shared": "accent",
    "meter-cached": "secondary",
    "sparkline": "success",
}
"""The app's own theme variables and the colour role each has unless a theme says otherwise."""
_ANSI_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
ANSI_COLORS = frozenset(
    {"ansi_default"} | {f"ansi_{light}{name}" for name in _ANSI_NAMES for light in ("", "bright_")}
)
"""The terminal's own colours, for themes of these alone."""
_TABLES = ("name", "description", "dark", "ansi", "colors", "variables", "code")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_VARIABLE_VALUE = re.compile(r"[A-Za-z0-9#%_., ()$-]+")


class ThemeFileError(Exception):
    """A theme file is broken; names the file and the key."""


@dataclass(frozen=True, slots=True)
class ThemeFile:
    """One theme as its file says it; colours are "#rrggbb", those of an `ansi` theme names."""

    name: str
    description: str
    dark: bool
    ansi: bool
    colors: Mapping[str, str]
    variables: Mapping[str, str]
    code_style: str
    source: str

    def resolved_variables(self) -> dict[str, str]:
        """The app's theme variables with the theme's own values over the defaults."""
        resolved = {name: self.colors[role] for name, role in VARIABLE_DEFAULTS.items()}
        resolved |= chat_colors(self.colors)
        return resolved | dict(self.variables) | {"code-style": self.code_style}


def load_themes(user_folder: Path | None = None) -> tuple[list[ThemeFile], list[str]]:
    """Read all theme files, the person's own last; return themes and warnings.

    A theme of the person replaces one of the package with the same name.
    """
    found: dict[str, ThemeFile] = {}
    warnings: list[str] = []
    for source, text in _theme_texts(user_folder, warnings):
        try:
            theme = parse_theme(text, source)
        except ThemeFileError as error:
            warnings.append(f"{error}; the theme is skipped")
            continue
        found[theme.name] = theme
    return list(found.values()), warnings


def variable_defaults(colors: Mapping[str, str]) -> dict[str, str]:
    """The app's variables for a theme that knows none of them (Textual's own themes).

    `colors` maps role names to colours, as Textual's generated variables do.
    """
    fallback = colors.get("foreground", "#e0e0e0")
    resolved = {name: colors.get(role, fallback) for name, role in VARIABLE_DEFAULTS.items()}
    return resolved | chat_colors(colors) | {"code-style": DEFAULT_CODE_STYLE}


def parse_theme(text: str, source: str) -> ThemeFile:
    """Read one theme file's text; `source` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ThemeFileError(f"{source}: not valid TOML ({error})") from error
    _reject_unknown(data, _TABLES, source, "")
    name = _typed(data, "name", str, source)
    if not _NAME.fullmatch(name):
        raise ThemeFileError(f"{source}: name must be small letters, digits and -, not {name!r}")
    ansi = _typed(data, "ansi", bool, source, default=False)
    return ThemeFile(
        name=name,
        description=_typed(data, "description", str, source, default=""),
        dark=_typed(data, "dark", bool, source, default=True),
        ansi=ansi,
        colors=_colors(_typed(data, "colors", dict, source), source, ansi=ansi),
        variables=_variables(_typed(data, "variables", dict, source, default={}), source, ansi=ansi),
        code_style=_code_style(_typed(data, "code", dict, source, default={}), source),
        source=source,
    )


def _theme_texts(user_folder: Path | None, warnings: list[str]) -> list[tuple[str, str]]:
    entries = sorted(files("themes").iterdir(), key=lambda item: item.name)
    texts = [(e.name, e.read_text(encoding="utf-8")) for e in entries if e.name.endswith(".toml")]
    try:
        own = sorted(user_folder.glob("*.toml")) if user_folder is not None else []
    except OSError as error:
        warnings.append(f"{user_folder}: cannot be listed ({error.strerror})")
        own = []
    for path in own:
        try:
            texts.append((str(path), path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            warnings.append(f"{path}: cannot be read ({error}); the theme is skipped")
    return texts


def _example(*, ansi: bool) -> str:
    return '"ansi_blue"' if ansi else '"#4a90d9"'


def _is_color(value: Any, *, ansi: bool) -> bool:
    return isinstance(value, str) and (value in ANSI_COLORS if ansi else bool(_HEX.fullmatch(value)))


def _colors(table: dict[str, Any], source: str, *, ansi: bool) -> dict[str, str]:
    _reject_unknown(table, COLOR_ROLES, source, "colors.")
    for role in COLOR_ROLES:
        value = table.get(role)
        if value is None:
            example = _example(ansi=ansi)
            raise ThemeFileError(f"{source}: colors.{role} is missing; give a colour such as {example}")
        if not _is_color(value, ansi=ansi):
            raise ThemeFileError(
                f"{source}: colors.{role} must be a colour such as {_example(ansi=ansi)}, not {value!r}"
            )
    return {role: table[role] for role in COLOR_ROLES}


def _variables(table: dict[str, Any], source: str, *, ansi: bool) -> dict[str, str]:
    for key, value in table.items():
        own = key in VARIABLE_DEFAULTS or key in NAMES
        if not _NAME.fullmatch(key):
            raise ThemeFileError(f"{source}: variables.{key} is not a variable's name")
        if not isinstance(value, str) or not _VARIABLE_VALUE.fullmatch(value):
            raise ThemeFileError(f"{source}: variables.{key} must be text in quotes, not {value!r}")
        if own and not _is_color(value, ansi=ansi):
            raise ThemeFileError(
                f"{source}: variables.{key} must be a colour such as {_example(ansi=ansi)}, not {value!r}"
            )
    return dict(table)


def _code_style(table: dict[str, Any], source: str) -> str:
    _reject_unknown(table, ("style",), source, "code.")
    style = _typed(table, "style", str, source, default=DEFAULT_CODE_STYLE, prefix="code.")
    from pygments.styles import STYLE_MAP, get_all_styles

    # Pygments' own names first: those of plugins are found by reading every installed package's data.
    if style not in STYLE_MAP and style not in (styles := list(get_all_styles())):
        near = get_close_matches(style, styles, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ThemeFileError(f"{source}: code.style {style!r} is not a pygments style{hint}")
    return style


def _typed(
    table: dict[str, Any], key: str, kind: type, source: str, *, default: Any = None, prefix: str = ""
) -> Any:
    value = table.get(key, default)
    if value is None:
        raise ThemeFileError(f"{source}: {prefix}{key} is missing")
    if not isinstance(value, kind):
        names = {str: "text in quotes", bool: "true or false", dict: f"a table [{key}]"}
        raise ThemeFileError(f"{source}: {prefix}{key} must be {names[kind]}, not {value!r}")
    return value


def _reject_unknown(table: dict[str, Any], known: tuple[str, ...], source: str, prefix: str) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            raise ThemeFileError(f"{source}: unknown key {prefix}{key}{hint}")
