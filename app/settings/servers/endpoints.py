"""Servers that answer chats over HTTP, as the settings name them: `[endpoints.NAME]`.

Keys are never here: a setting says which environment variable holds one, or where in the system's keyring
it is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlsplit

from app.settings.options import kind_of

GIVEN_KEY = "TUI_CHAT_API_KEY"
"""The environment variable with the key of an endpoint that the command line names."""
ENDPOINT_HELP = (
    "chat with the models of a server that speaks OpenAI's protocol, such as http://127.0.0.1:8000/v1; its "
    f"key, if it wants one, is read from {GIVEN_KEY}"
)
FIELDS = ("url", "api_key_env", "api_key_keyring", "models")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server that speaks OpenAI's protocol."""

    name: str
    url: str
    """Where its paths begin, such as http://127.0.0.1:8000/v1."""
    api_key_env: str = ""
    """The environment variable that holds the key; "": no key is sent."""
    models: tuple[str, ...] = ()
    """The models to list; none: those that the server lists."""
    api_key_keyring: str = ""
    """Where the system's keyring holds the key instead, as SERVICE/USER."""
    optional_key: bool = False
    """Whether it is asked without a key where the variable is not set."""


def checked_url(text: str) -> str:
    """Return the address under which an endpoint's paths are; `ValueError` completes the words "must be"."""
    example = "an address such as http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(text.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{example} ({error})") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{example}, without a name or a key in it: api_key_env says where the key is")
    if parts.scheme not in ("http", "https") or not host or not text.isprintable() or " " in text.strip():
        raise ValueError(f"{example}, not {text!r}")
    if parts.query or parts.fragment:
        raise ValueError(f"{example}, without anything behind ? or #")
    return SplitResult(parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", "").geturl()


def given_endpoint(url: str, known: Mapping[str, Endpoint]) -> Endpoint:
    """Return the endpoint of an address that a person names: one of the settings, or a new one.

    Raises `ValueError` as `checked_url` does.
    """
    checked = checked_url(url)
    found = next((endpoint for endpoint in known.values() if endpoint.url == checked), None)
    return found or Endpoint(urlsplit(checked).netloc, checked, GIVEN_KEY, optional_key=True)


def read_endpoints(content: Mapping[str, Any], where: str, warnings: list[str]) -> Mapping[str, Endpoint]:
    """Read the section; what cannot be used is left out with a warning. where: names the section."""
    found: dict[str, Endpoint] = {}
    for name, fields in content.items():
        place = f"{where}.{name}"
        if not isinstance(fields, dict):
            warnings.append(f"{place} must be a section [endpoints.{name}], not {kind_of(fields)}; ignored")
        elif _NAME.fullmatch(name) is None:
            warnings.append(f"{place}: a name has letters, digits and . _ : - alone; ignored")
        elif (endpoint := _read_endpoint(name, fields, place, warnings)) is not None:
            found[name] = endpoint
    return MappingProxyType(found)


def _read_endpoint(name: str, fields: Mapping[str, Any], place: str, warnings: list[str]) -> Endpoint | None:
    known = ", ".join(FIELDS)
    warnings += [f"{place}: unknown key {key}; there are {known}" for key in fields if key not in FIELDS]
    try:
        return Endpoint(name, _url(fields), _variable(fields), _models(fields), _entry(fields))
    except ValueError as error:
        warnings.append(f"{place}.{error}; the endpoint is ignored")
        return None


def _url(fields: Mapping[str, Any]) -> str:
    value = fields.get("url")
    if not isinstance(value, str):
        raise ValueError("url must be an address such as http://127.0.0.1:8000/v1")
    try:
        return checked_url(value)
    except ValueError as error:
        raise ValueError(f"url must be {error}") from None


def _variable(fields: Mapping[str, Any]) -> str:
    value = fields.get("api_key_env", "")
    if not isinstance(value, str) or (value and _VARIABLE.fullmatch(value) is None):
        # What stands there may be the key itself: it is not repeated.
        raise ValueError("api_key_env must be the name of an environment variable, and not the key itself")
    return value


def _entry(fields: Mapping[str, Any]) -> str:
    value = fields.get("api_key_keyring", "")
    service, _, user = value.rpartition("/") if isinstance(value, str) else ("", "", "")
    if value != "" and not (service and user and value.isprintable()):
        raise ValueError(
            "api_key_keyring must be the service and the user of the keyring's entry, such as "
            "tui-chat/cluster, and not the key itself"
        )
    if value and fields.get("api_key_env"):
        raise ValueError("api_key_keyring cannot stand beside api_key_env: leave one of them out")
    return f"{service}/{user}" if value else ""


def _models(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("models", [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError('models must be a list of names such as ["qwen3-32b"]')
    return tuple(value)
