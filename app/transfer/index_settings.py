"""Which package index the user's pip or uv is set up with: environment first, then their files.

Only read, never changed; what neither says is PyPI. An address may hold a name and a password: it is for
asking, never for showing.
"""

import configparser
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.transfer.errors import FetchError

_DEFAULT = "https://pypi.org/simple"
_SECTIONS = ("download", "install", "global")


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Addresses of simple indexes in the order in which they are asked; a certificate file of theirs."""

    urls: tuple[str, ...]
    certificates: str | None = None


def index_settings(environment: Mapping[str, str]) -> IndexSettings:
    """Read what pip and uv would use here. Raises `FetchError` naming a file that cannot be read."""
    pip, uv = _pip(environment), _uv(environment)
    main = (
        environment.get("PIP_INDEX_URL")
        or environment.get("UV_DEFAULT_INDEX")
        or environment.get("UV_INDEX_URL")
        or pip.get("index-url")
        or uv.get("index-url")
        or _DEFAULT
    )
    extra = (
        *environment.get("PIP_EXTRA_INDEX_URL", "").split(),
        *environment.get("UV_INDEX", "").split(),
        *environment.get("UV_EXTRA_INDEX_URL", "").split(),
        *pip.get("extra-index-url", "").split(),
        *uv.get("extra-index-url", "").split(),
    )
    found = dict.fromkeys(_address(url) for url in (main, *extra))
    urls = tuple(url for url in found if url.startswith(("http://", "https://")))
    certificates = environment.get("PIP_CERT") or pip.get("cert")
    return IndexSettings(urls, str(Path(certificates).expanduser()) if certificates else None)


def _address(text: str) -> str:
    """An index's address without the name that uv allows before it, `internal=https://…`."""
    name, equals, url = text.partition("=")
    return (url if equals and "/" not in name else text).rstrip("/")


def _pip(environment: Mapping[str, str]) -> dict[str, str]:
    """The options of pip's files, those that count most first."""
    found: dict[str, str] = {}
    for path in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            with path.open(encoding="utf-8") as stream:
                parser.read_file(stream)
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise _unreadable(path, error) from error
        for section in _SECTIONS:
            if parser.has_section(section):
                for key, value in parser.items(section):
                    found.setdefault(key.replace("_", "-"), value)
    return found


def _pip_files(environment: Mapping[str, str]) -> Iterator[Path]:
    named = environment.get("PIP_CONFIG_FILE")
    if named:
        yield Path(named)
        if named == "/dev/null":
            return
    yield Path(sys.prefix, "pip.conf")
    home = _home(environment)
    yield _config_home(environment) / "pip" / "pip.conf"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield home / ".pip" / "pip.conf"
    for folder in _system_folders(environment):
        yield folder / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")


def _uv(environment: Mapping[str, str]) -> dict[str, str]:
    """The options of uv's files, under the names that pip has for them."""
    named = environment.get("UV_CONFIG_FILE")
    folders = (_config_home(environment), *_system_folders(environment), Path("/etc"))
    found: dict[str, str] = {}
    for path in [Path(named)] if named else [folder / "uv" / "uv.toml" for folder in folders]:
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise _unreadable(path, error) from error
        for key, value in _uv_options(data):
            found.setdefault(key, value)
    return found


def _uv_options(data: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    indexes = [index for index in data.get("index", ()) if isinstance(index, dict) and index.get("url")]
    main = [str(index["url"]) for index in indexes if index.get("default")]
    extra = [str(index["url"]) for index in indexes if not index.get("default")]
    for section in (data, data.get("pip", {})):
        if isinstance(section.get("index-url"), str):
            main.append(section["index-url"])
        extra += map(str, section.get("extra-index-url", ()))
    if main:
        yield "index-url", main[0]
    if extra:
        yield "extra-index-url", " ".join(extra)


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _config_home(environment: Mapping[str, str]) -> Path:
    given = environment.get("XDG_CONFIG_HOME")
    return Path(given) if given else _home(environment) / ".config"


def _system_folders(environment: Mapping[str, str]) -> list[Path]:
    given = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(folder) for folder in given.split(":") if folder]


def _unreadable(path: Path, error: Exception) -> FetchError:
    reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
    return FetchError(f"{path}: cannot be read ({reason}); correct it, or set PIP_INDEX_URL")
