"""What can go wrong at an endpoint, each in one line with what to do about it; no line holds a key."""

from typing import Any

from app.settings.servers.endpoints import Endpoint
from engine import EngineError

_LONGEST = 300


class EndpointError(EngineError):
    """An endpoint did not answer. again: it may work at once, or after `wait` seconds."""

    def __init__(self, message: str, *, again: bool = False, wait: float | None = None) -> None:
        super().__init__(message)
        self.again, self.wait = again, wait


def status_error(
    endpoint: Endpoint, status: int, said: str, model: str = "", wait: float | None = None
) -> EndpointError:
    """Say what an HTTP status means. said: the server's own words; wait: the seconds that it asks for."""
    name, words = endpoint.name, f": {said}" if said else ""
    if status in (401, 403):
        return EndpointError(f"{name} {_refusal(endpoint)} ({status}){words}")
    if status == 404 and model:
        return EndpointError(
            f"{name} has no model {model} ({status}){words}; choose another one, or correct "
            f"endpoints.{name}.url if it is no {endpoint.url}"
        )
    if status == 429:
        return EndpointError(f"{name} has been asked too often (429){words}", again=True, wait=wait)
    if status >= 500:
        return EndpointError(f"{name} has a fault ({status}){words}", again=True, wait=wait)
    return EndpointError(f"{name} refuses what it was asked ({status}){words}")


def _refusal(endpoint: Endpoint) -> str:
    if endpoint.api_key_keyring:
        return f"refuses the key {endpoint.api_key_keyring} of the system's keyring"
    if endpoint.api_key_env:
        return f"refuses the key of the environment variable {endpoint.api_key_env}"
    return f"wants a key: name its environment variable in endpoints.{endpoint.name}.api_key_env"


def redirect_error(endpoint: Endpoint, location: str) -> EndpointError:
    """The server sends elsewhere; a key is for the address alone that the settings name."""
    to = f" to {one_line(location)}" if location else ""
    return EndpointError(
        f"{endpoint.name} redirects{to}; if that is right, write it into endpoints.{endpoint.name}.url"
    )


def one_line(text: str, secret: str = "") -> str:
    """Foreign words as a line of ours; `secret` does not appear in it."""
    if secret:
        text = text.replace(secret, "…")
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * _LONGEST]).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def words_of(body: Any) -> str:
    """What an error's body says, in whichever of the usual places."""
    for key in ("error", "message", "detail"):
        found = body.get(key) if isinstance(body, dict) else None
        if isinstance(found, dict):
            found = found.get("message") or found.get("code")
        if isinstance(found, str) and found:
            return found
    return ""
