"""Reading what is attached to a message: text files, folders of them, and documents.

For another thread than the UI's.
"""

import codecs
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.settings.words import size_text
from app.writing.blocks import fenced, gathered
from app.writing.documents import SUFFIXES, document_text

_MOST_FILES, _MOST_LOOKED_AT = 200, 5_000
_LARGEST_DOCUMENT = 50 * 1000 * 1000
_LANGUAGE = re.compile(r"\.[a-z0-9]{1,10}")
_SET_IT = "attach_limit in the settings allows more"


class AttachError(Exception):
    """Something cannot be attached; says what and why."""


class _NotText(AttachError):
    """A file of a folder that is passed over."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What was read: `text` is how it stands in a message."""

    kind: str
    name: str
    text: str


def read_attachment(path: Path, name: str, limit: int) -> Attachment:
    """Read a file or folder to attach it under a name; raises `AttachError`.

    limit: the most bytes of text.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _read_folder(path, name.rstrip("/") or "/", limit)
        if not stat.S_ISREG(mode):
            raise AttachError(f"{name} is not a file or a folder.")
        text = _file_text(path, name, limit)
    except OSError as error:
        raise AttachError(f"{name} cannot be read ({error.strerror}).") from error
    return Attachment("file", name, _block(path, name, text))


def _block(path: Path, name: str, text: str) -> str:
    suffix = path.suffix.casefold()
    language = suffix[1:] if _LANGUAGE.fullmatch(suffix) and suffix not in SUFFIXES else ""
    return fenced("file", name, text, language)


def _file_text(path: Path, name: str, limit: int) -> str:
    size = path.stat().st_size
    if path.suffix.casefold() in SUFFIXES:
        if size > _LARGEST_DOCUMENT:
            raise AttachError(
                f"{name} has {size_text(size)}; documents may have {size_text(_LARGEST_DOCUMENT)}."
            )
        try:
            text = document_text(path)
        except ValueError as error:
            raise AttachError(f"{name}: {error}.") from error
        size = len(text.encode())
    if size > limit:
        raise AttachError(f"{name} has {size_text(size)}, more than {size_text(limit)}; {_SET_IT}.")
    if path.suffix.casefold() not in SUFFIXES:
        text = _decoded(path.read_bytes(), name)
    if not text.strip():
        raise AttachError(f"{name} holds no text.")
    return text


def _decoded(data: bytes, name: str) -> str:
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _NotText(f"{name} is not text; only text can be attached.") from error
    if "\x00" in text:
        raise _NotText(f"{name} is not text; only text can be attached.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_folder(folder: Path, name: str, limit: int) -> Attachment:
    files: list[str] = []
    size = 0
    for path in _files_below(folder, name):
        try:
            data = _bytes_within(path, limit)
            shown = f"{name.rstrip('/')}/{path.relative_to(folder).as_posix()}"
            text = _decoded(data, shown) if len(data) <= limit else ""
        except (_NotText, OSError):
            continue
        too_large = len(data) > limit and b"\x00" not in data
        if not text.strip() and not too_large:
            continue
        files.append(_block(path, shown, text))
        size += len(data)
        if size > limit:
            raise AttachError(f"{name} holds more than {size_text(limit)} of text; {_SET_IT}.")
        if len(files) > _MOST_FILES:
            raise AttachError(f"{name} holds more than {_MOST_FILES} files of text; attach a part of it.")
    if not files:
        raise AttachError(f"{name} holds no text files.")
    return Attachment("folder", name, gathered(name, files))


def _bytes_within(path: Path, limit: int) -> bytes:
    """Read one byte more than the limit at most: it is enough to see that it is too much."""
    with path.open("rb") as stream:
        return stream.read(limit + 1)


def _files_below(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a folder in order; nothing hidden, and no folder behind a link."""
    looked_at = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in sorted(one for one in files if not one.startswith(".")):
            path = Path(parent, file)
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                raise AttachError(f"{name} holds more than {_MOST_LOOKED_AT:,} files; attach a part of it.")
            if path.is_file() and path.suffix.casefold() not in SUFFIXES:
                yield path
