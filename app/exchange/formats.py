"""The formats that chats are written in, and the names of their files."""

import json
import re
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from app.exchange.html_page import html_page
from app.exchange.kept import KeptChat
from app.exchange.markdown_text import markdown_text
from app.exchange.own_format import chat_record, record_of
from app.settings.paths import private_directory, write_atomically

_UNFIT = re.compile(r"[^\w\-. ]+")
_LONGEST_NAME = 60


class Format(StrEnum):
    """What a file of chats is written as, by the end of its name."""

    MARKDOWN = "md"
    JSON = "json"
    HTML = "html"


def text_of(kept: KeptChat, form: Format) -> str:
    """Return the text of a file that holds one chat."""
    writers: dict[Format, Callable[[KeptChat], str]] = {
        Format.MARKDOWN: markdown_text,
        Format.JSON: lambda chat: json_text([chat]),
        Format.HTML: html_page,
    }
    return writers[form](kept)


def json_text(chats: Sequence[KeptChat]) -> str:
    """Return the text of a file in the app's own format."""
    return json.dumps(record_of(map(chat_record, chats)), ensure_ascii=False, indent=1) + "\n"


def file_stem(kept: KeptChat) -> str:
    """Return a file's name without its end: the day, and the title without what file systems refuse."""
    day = time.strftime("%Y-%m-%d", time.localtime(kept.conversation.updated))
    title = " ".join(_UNFIT.sub(" ", kept.conversation.title).split())
    while len(title.encode()) > _LONGEST_NAME:
        title = title[:-1]
    return f"{day} {title.strip(' .')}".strip()


def write_export(folder: Path, kept: KeptChat, form: Format) -> Path:
    """Write a chat into a file of its own in a folder; raises `OSError`."""
    path = free_path(private_directory(folder), file_stem(kept), form)
    write_atomically(path, text_of(kept, form))
    return path


def free_path(folder: Path, stem: str, form: Format) -> Path:
    """Return the path of a file that is not there yet."""
    path, number = folder / f"{stem}.{form}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem} ({number}).{form}"
    return path
