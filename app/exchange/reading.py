"""Reading a file of chats: the app's own, ChatGPT's export (its zip file too) or Open WebUI's."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from app.exchange.chatgpt import read_chatgpt
from app.exchange.kept import ChatFileError, KeptChat
from app.exchange.open_webui import read_open_webui
from app.exchange.own_format import FORMAT, VERSION, read_record
from app.exchange.values import Fields

MOST_BYTES = 512 << 20
_IN_ZIP = "conversations.json"
_FORMATS = "tui-chat's own JSON, ChatGPT's export and Open WebUI's are"


def read_chats(path: Path) -> Iterator[KeptChat | ChatFileError]:
    """Yield the chats of a file; in place of one that cannot be read, why.

    Raises `ChatFileError` when the file holds no chats, and `OSError`.
    """
    contents = _parsed(path, _file_bytes(path))
    try:
        found = _entries(contents)
    except ChatFileError as error:
        raise ChatFileError(f"{path}: {error}") from error
    if found is None:
        raise ChatFileError(f"{path}: its format is not known; {_FORMATS}")
    return (_read(entry, at) for at, entry in enumerate(found, 1))


def _read(entry: Any, at: int) -> KeptChat | ChatFileError:
    if not isinstance(entry, dict):
        return ChatFileError(f"chat {at}: is no object")
    title = entry.get("title")
    named = f" (“{' '.join(title.split())[:60]}”)" if isinstance(title, str) and title.strip() else ""
    chat = Fields(entry, f"chat {at}{named}")
    try:
        return _reader(entry)(chat)
    except ChatFileError as error:
        return error


def _reader(entry: dict[str, Any]) -> Callable[[Fields], KeptChat]:
    if "mapping" in entry:
        return read_chatgpt
    return read_open_webui if "chat" in entry else read_record


def _entries(contents: Any) -> list[Any] | None:
    """Return what stands for chats in a file, None where nothing does."""
    if isinstance(contents, dict) and contents.get("format") == FORMAT:
        version = contents.get("version")
        if version != VERSION:
            raise ChatFileError(
                f"it is of version {str(version)[:20]} of the format; this tui-chat reads version {VERSION}"
            )
        chats = contents.get("chats")
        return chats if isinstance(chats, list) else None
    entries = contents if isinstance(contents, list) else [contents]
    known = any(isinstance(entry, dict) and ("mapping" in entry or "chat" in entry) for entry in entries)
    return entries if known else None


def _parsed(path: Path, raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_no_number)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise ChatFileError(f"{path}: it is no JSON ({reason})")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _file_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            return _from_zip(path)
        file.seek(0)
        return _at_most(path, file.read(MOST_BYTES + 1))


def _from_zip(path: Path) -> bytes:
    """Return the chats' file of a zip; what it says of its size is not believed."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == _IN_ZIP]
            if not names:
                raise ChatFileError(f"{path}: there is no {_IN_ZIP} in it")
            with archive.open(min(names, key=len)) as file:
                return _at_most(path, file.read(MOST_BYTES + 1))
    except (ChatFileError, OSError, MemoryError):
        raise
    except Exception as error:
        # A damaged or encrypted one: zipfile, zlib, bz2 and lzma have errors of many kinds.
        raise ChatFileError(f"{path}: the zip file cannot be read ({error})") from error


def _at_most(path: Path, raw: bytes) -> bytes:
    if len(raw) > MOST_BYTES:
        raise ChatFileError(f"{path}: it is larger than {MOST_BYTES >> 20} MiB; export fewer chats at a time")
    return raw
