"""`https://…/NAME.gguf[#sha256=HEX]`: a file at an address, with a checksum behind it or without."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import unquote, urldefrag, urlsplit, urlunsplit

from app.transfer.errors import FetchError, host_of
from app.transfer.plan import Asked, Licence, ModelFile, Plan, RemoteFile
from app.transfer.web import Web, split_login

_SHA256 = re.compile(r"sha256=(?P<digest>[0-9a-fA-F]{64})")
_TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")
_SPLIT = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.+@()\[\] -]")


class Link:
    """The source behind http: and https: addresses."""

    def plan(self, what: str, asked: Asked) -> Plan:
        """One file, or all parts of a split one of which a part is named."""
        url, fragment = urldefrag(what)
        # A password is not written down anywhere: what goes on later is asked for with it again.
        shown = split_login(what)[0]
        checksum = _SHA256.fullmatch(fragment)
        if fragment and checksum is None:
            raise FetchError(f"{shown}: behind the # may stand sha256= and 64 digits 0-9 a-f, nothing else")
        files = tuple(_remote_file(address, asked.web) for address in _parts(url))
        if checksum is not None and len(files) > 1:
            raise FetchError(f"{shown}: one checksum cannot be that of {len(files)} parts; leave it out")
        if checksum is not None:
            files = (replace(files[0], sha256=checksum["digest"].lower()),)
        return Plan(
            what=shown,
            title=PurePosixPath(files[0].name).stem,
            source=host_of(url),
            licence=Licence(),
            files=files,
            models=tuple(ModelFile(file.name, file.size) for file in files),
        )


def _parts(url: str) -> list[str]:
    """The address, or those of all parts where it names one of a split file."""
    pieces = urlsplit(url)
    split = _SPLIT.fullmatch(pieces.path)
    if split is None:
        return [url]
    count = split["count"]
    paths = [f"{split['stem']}-{n:05d}-of-{count}{split['suffix']}" for n in range(1, int(count) + 1)]
    return [urlunsplit(pieces._replace(path=path)) for path in paths]


def _remote_file(url: str, web: Web) -> RemoteFile:
    """The file at an address, its size as far as the server says it."""
    name = _UNSAFE.sub("_", PurePosixPath(unquote(urlsplit(url).path)).name)
    if not name.lower().endswith(".gguf") or name.startswith("."):
        raise FetchError(f"{split_login(url)[0]}: the address must end in the name of a .gguf file")
    with closing(web.get(url, {"Range": "bytes=0-0"})) as answer:
        given = _TOTAL.match(answer.headers.get("Content-Range", ""))
        length = answer.headers.get("Content-Length", "")
        if answer.status == 206:
            size = int(given[1]) if given is not None else None
        else:
            size = int(length) if length.isdecimal() else None
    return RemoteFile(url, name, size)
