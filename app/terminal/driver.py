"""Sending the terminal what no widget draws, past Textual, which keeps its driver to itself."""

from typing import Any

from textual.app import App


def write_terminal(app: App[Any], sequence: str) -> None:
    """Send an escape sequence, from any thread but the app's own; without a terminal nothing is sent."""
    driver = app._driver
    if driver is not None:
        app.call_from_thread(driver.write, sequence)


def write_from_app(app: App[Any], sequence: str) -> None:
    """Send an escape sequence from the app's own thread."""
    driver = app._driver
    if driver is not None:
        driver.write(sequence)
        driver.flush()
