"""The settings as a commented file: what the app writes where there is none, and README's reference."""

import textwrap
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from app.settings.servers.tool_servers import ToolServer
from app.settings.toml_text import toml_entry

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
_ENDPOINTS = (
    "# servers that speak OpenAI's protocol, under names of your own; the model picker lists their models.\n"
    "# api_key_env names the environment variable with the key, which stands in no file; api_key_keyring\n"
    "# names its entry in the system's keyring instead, as SERVICE/USER\n"
)
_ENDPOINT = {"url": "http://127.0.0.1:8000/v1", "api_key_env": "CLUSTER_KEY", "models": ("qwen3-32b",)}


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
        elif section.name == "endpoints":
            fields_of_one = ", ".join(toml_entry(name, value) for name, value in _ENDPOINT.items())
            lines = f"{_ENDPOINTS}#cluster = {{ {fields_of_one} }}"
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
