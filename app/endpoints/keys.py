"""An endpoint's key: from the environment, or from the system's keyring; in memory alone from then on."""

import asyncio
import os

from app.endpoints.errors import EndpointError, one_line
from app.settings.servers.endpoints import Endpoint

_INSTALL = "pip install 'tui-chat[keyring]'"


class KeySource:
    """Of one endpoint, on one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._kept: str | None = None
        self._reading = asyncio.Lock()

    async def key(self) -> str:
        """The key, "" where none is wanted; raises `EndpointError` where it cannot be had.

        A keyring may ask somebody for its password first: it is read once, and by a thread.
        """
        if not self._endpoint.api_key_keyring:
            return _checked(_of_environment(self._endpoint), f"the environment variable {self._variable}")
        async with self._reading:
            if self._kept is None:
                found = await asyncio.to_thread(_of_keyring, self._endpoint)
                self._kept = _checked(found, _field(self._endpoint))
            return self._kept

    def refused(self) -> None:
        """The server does not take the key: it is read again when it is needed next."""
        self._kept = None

    @property
    def _variable(self) -> str:
        return self._endpoint.api_key_env


def _of_environment(endpoint: Endpoint) -> str:
    variable = endpoint.api_key_env
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key and not endpoint.optional_key:
        raise EndpointError(f"{endpoint.name} needs a key: the environment variable {variable} is not set")
    return key


def _of_keyring(endpoint: Endpoint) -> str:
    field = _field(endpoint)
    try:
        import keyring
    except ImportError as error:
        raise EndpointError(f"{field} needs the package keyring; run: {_INSTALL}") from error
    service, _, user = endpoint.api_key_keyring.rpartition("/")
    try:
        key = keyring.get_password(service, user)
    except Exception as error:
        # Every backend raises errors of its own, beside those of the package.
        cause = one_line(str(error)) or type(error).__name__
        raise EndpointError(f"{field}: the system's keyring cannot be read: {cause}") from error
    if not key or not key.strip():
        raise EndpointError(
            f"{field}: the system's keyring has no key {endpoint.api_key_keyring}; "
            f"run: keyring set {service} {user}"
        )
    return key.strip()


def _checked(key: str, where: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(f"{where} holds no key that could be sent")
    return key


def _field(endpoint: Endpoint) -> str:
    return f"endpoints.{endpoint.name}.api_key_keyring"
