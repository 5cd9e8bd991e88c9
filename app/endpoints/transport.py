"""Why a server could not be asked, or did not go on: the faults of HTTP and of what lies below it."""

import socket
import ssl
from collections.abc import Iterator

import httpx

from app.endpoints.errors import EndpointError, one_line
from app.settings.servers.endpoints import Endpoint


def transport_error(endpoint: Endpoint, error: Exception) -> EndpointError:
    """Say why a server could not be asked, or did not go on."""
    name, url = endpoint.name, endpoint.url
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return EndpointError(
            f"the certificate of {name} at {url} cannot be verified; where it is your own, name its file in "
            "SSL_CERT_FILE"
        )
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return EndpointError(f"{name} does not speak TLS at {url}; an address of it begins with http://")
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return EndpointError(f"there is no host of {name} at {url}; check the address and the network")
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return EndpointError(f"{name} does not answer at {url}: is the server running?", again=True)
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return EndpointError(f"endpoints.{name}.url: {url} cannot be asked ({one_line(str(error))})")
    return EndpointError(f"the connection to {name} was lost", again=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
