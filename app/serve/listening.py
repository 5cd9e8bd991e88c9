"""Where a server listens; light, so that a port that is taken is told before anything else is loaded."""

import os
import socket
from importlib.util import find_spec
from typing import Any

NEEDED = ("starlette", "uvicorn", "prometheus_client")
"""The packages of the extra `serve`."""
USUAL_PORT = 8080


def missing_package() -> str | None:
    """Say what is not installed and how to install it, or return None."""
    missing = next((package for package in NEEDED if find_spec(package) is None), None)
    return None if missing is None else f"{missing} is not installed; run: pip install 'tui-chat[serve]'"


def listening_socket(host: str, port: int) -> socket.socket:
    """The socket for an address; raises `OSError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


def address_of(listening: socket.socket) -> str:
    """What clients are pointed at."""
    name: Any = listening.getsockname()
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
