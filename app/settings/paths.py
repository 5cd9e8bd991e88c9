"""Where the app keeps its files, and how they are written whole.

`TUI_CHAT_HOME` replaces every location by a folder below it, for tests and portable installations.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

APP_NAME = "tui-chat"
HOME_VARIABLE = "TUI_CHAT_HOME"


@dataclass(frozen=True, slots=True)
class Locations:
    """The folders and files of one user."""

    config: Path
    data: Path
    models: Path
    themes: Path
    logs: Path
    cache: Path
    state: Path

    @property
    def settings_file(self) -> Path:
        """The settings, TOML."""
        return self.config / "settings.toml"

    @property
    def catalogue_file(self) -> Path:
        """The user's own models to fetch by name, TOML."""
        return self.config / "catalogue.toml"

    @property
    def prompts(self) -> Path:
        """The user's prompts, a Markdown file each."""
        return self.config / "prompts"

    @property
    def history_file(self) -> Path:
        """The conversations, SQLite."""
        return self.data / "history.db"

    @property
    def exports(self) -> Path:
        """Where chats are written to when no other place is named."""
        return self.data / "exports"

    @property
    def speeds_file(self) -> Path:
        """How fast models wrote on this computer, JSON."""
        return self.data / "speeds.json"

    @property
    def notes_file(self) -> Path:
        """Favourite models and when each was used last, JSON."""
        return self.state / "models.json"

    @property
    def doors(self) -> Path:
        """Where programs that serve note their addresses."""
        return self.state / "doors"

    @property
    def kv_folder(self) -> Path:
        """The contexts of chats, as the engine keeps them between two starts."""
        return self.cache / "kv"

    @property
    def log_file(self) -> Path:
        """What went wrong, for a bug report."""
        return self.logs / "tui-chat.log"


def locations() -> Locations:
    """Return this user's locations, from `TUI_CHAT_HOME` or the platform's conventions."""
    home = os.environ.get(HOME_VARIABLE, "").strip()
    if home:
        return _below(Path(home).expanduser().absolute())
    from platformdirs import PlatformDirs

    dirs = PlatformDirs(APP_NAME, appauthor=False)
    config, data = Path(dirs.user_config_dir), Path(dirs.user_data_dir)
    return Locations(
        config=config,
        data=data,
        models=data / "models",
        themes=config / "themes",
        logs=Path(dirs.user_log_dir),
        cache=Path(dirs.user_cache_dir),
        state=Path(dirs.user_state_dir),
    )


def _below(home: Path) -> Locations:
    return Locations(
        config=home / "config",
        data=home / "data",
        models=home / "data" / "models",
        themes=home / "config" / "themes",
        logs=home / "logs",
        cache=home / "cache",
        state=home / "state",
    )


def private_directory(path: Path) -> Path:
    """Create `path` for its owner only (0700) and return it; an existing folder keeps its mode.

    Raises `OSError` when it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that readers see all of it or what was there before; raises `OSError`."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
