"""The settings as a commented file: what the app writes where there is none, and README's reference."""

import textwrap
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from app.settings.toml_text import toml_entry
from app.settings.tool_servers import ToolServer

if TYPE_CHECKING:
    from app.settings.file import Settings

_WIDTH = 100
_WORTH_SAYING = 1024
"""Limits above it are only there to keep numbers sane."""
_HEAD = "# Settings of tui-chat. Take away the # of a setting to change it; behind it stands the default."
_KEYS = "# other keys for an action, by its name\n"
_EXAMPLE = ("new_tab", "ctrl+n")
_TOOLS = """# programs whose functions models may call, a section each; needs pip install 'tui-chat[tools]'
#[tools.NAME]
"""


def commented(settings: "Settings") -> str:
    """Write all settings but keys with their help; those that have their default are commented out."""
    parts = [_HEAD]
    for section in fields(settings):
        values = getattr(settings, section.name)
        if section.name == "keys":
            lines = f"{_KEYS}#{toml_entry(*_EXAMPLE)}"
        elif section.name == "tools":
            options = fields(ToolServer)
            parts.append(_TOOLS + "\n".join(_option(option, option.default, "#  ") for option in options))
            continue
        else:
            lines = "\n".join(
                _option(option, getattr(values, option.name)) for option in fields(values) if option.metadata
            )
        parts.append(f"[{section.name}]\n{lines}")
    return "\n\n".join(parts) + "\n"


def _option(option: "Field[Any]", value: Any, usual: str = "#") -> str:
    """usual: what stands before a setting that has its default."""
    limits = option.metadata
    text = limits["help"]
    if "choices" in limits:
        text += f" ({', '.join(limits['choices'])})"
    elif "low" in limits and limits["high"] <= _WORTH_SAYING:
        text += f" ({limits['low']:g} to {limits['high']:g})"
    lines = [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
    mark = usual if value == option.default else ""
    entry = f"{option.name} = {limits['written']}" if "written" in limits else toml_entry(option.name, value)
    return "\n".join([*lines, f"{mark}{entry}"])
