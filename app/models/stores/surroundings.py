"""Where programs of a user keep their files, on Linux, macOS and Windows."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.settings.paths import HOME_VARIABLE


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One user's home as programs see it."""

    home: Path
    platform: str = sys.platform
    variables: Mapping[str, str] = field(default_factory=dict)
    shared: bool = True
    """Whether folders of the whole computer are looked into."""

    def folder(self, variable: str, *below: str) -> list[Path]:
        """The folder that an environment variable names, or one below it; none where it is not set."""
        value = self.variables.get(variable, "").strip()
        return [Path(value).expanduser().joinpath(*below)] if value else []

    @property
    def data(self) -> Path:
        """Where programs keep what they made."""
        return self._standard("XDG_DATA_HOME", ".local/share", "Library/Application Support", "APPDATA")

    @property
    def local_data(self) -> Path:
        """The same, of what stays on this computer."""
        other = "LOCALAPPDATA"
        return self._standard("XDG_DATA_HOME", ".local/share", "Library/Application Support", other)

    @property
    def config(self) -> Path:
        """Where programs keep their settings."""
        return self._standard("XDG_CONFIG_HOME", ".config", "Library/Application Support", "APPDATA")

    @property
    def cache(self) -> Path:
        """Where programs keep what they can make again."""
        return self._standard("XDG_CACHE_HOME", ".cache", "Library/Caches", "LOCALAPPDATA")

    def _standard(self, variable: str, linux: str, macos: str, windows: str) -> Path:
        if self.platform == "win32":
            below = "AppData/Local" if windows == "LOCALAPPDATA" else "AppData/Roaming"
            return next(iter(self.folder(windows)), self.home / below)
        if self.platform == "darwin":
            return self.home / macos
        return next(iter(self.folder(variable)), self.home / linux)


def surroundings() -> Surroundings:
    """This user's; below `TUI_CHAT_HOME`, which replaces every location, where it is set."""
    home = os.environ.get(HOME_VARIABLE, "").strip()
    if home:
        return Surroundings(Path(home).expanduser().absolute(), shared=False)
    return Surroundings(Path.home(), variables=os.environ)
