"""The pages of a package index: which files a package has, from the simple API in JSON or in HTML."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from app.transfer.errors import FetchError, host_of
from app.transfer.index_settings import IndexSettings
from app.transfer.web import Web, read_body, split_login

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_LARGEST_PAGE = 64 << 20
_WORD = r"[A-Za-z0-9_.+!]"
_WHEEL = re.compile(
    rf"(?P<name>{_WORD}+)-(?P<version>{_WORD}+)(?:-\d{_WORD}*)?-{_WORD}+-{_WORD}+-(?P<platform>{_WORD}+)\.whl"
)
_LOGIN = "put a name and a password into the index's address, in PIP_INDEX_URL or pip's settings"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a package. size and sha256 are None where the index does not say."""

    name: str
    url: str
    size: int | None
    sha256: str | None


def normalised(name: str) -> str:
    """A package's name as indexes know it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_wheel(package: str, version: str, settings: IndexSettings, web: Web) -> IndexFile:
    """The wheel of one version in the first index that has it. Raises `FetchError`."""
    versions: set[str] = set()
    for index in settings.urls:
        wheels = []
        for file in _files(f"{index}/{normalised(package)}/", web):
            found = _WHEEL.fullmatch(file.name)
            if found is not None and normalised(found["name"]) == normalised(package):
                versions.add(found["version"])
                if found["version"] == version:
                    wheels.append((found["platform"] != "any", file.name, file))
        if wheels:
            return min(wheels, key=lambda wheel: wheel[:2])[2]
    asked = ", ".join(dict.fromkeys(host_of(url) for url in settings.urls))
    if versions:
        raise FetchError(
            f"{asked} has no wheel of {package} {version}; there are {', '.join(sorted(versions))}"
        )
    raise FetchError(
        f"{asked} has no wheels of a package {package}; check the name and the index of pip or uv"
    )


def _files(page: str, web: Web) -> list[IndexFile]:
    """The files on a package's page; none where the index does not know it."""
    try:
        answer = web.get(page, {"Accept": _ACCEPT}, login=_LOGIN)
    except FetchError as error:
        if error.status == 404:
            return []
        raise
    with closing(answer):
        body = read_body(answer, _LARGEST_PAGE + 1)
        kind, base = answer.headers.get_content_type(), answer.geturl()
    host = host_of(page)
    if len(body) > _LARGEST_PAGE:
        raise FetchError(f"{host}: the page of this package is too large; check the index of pip or uv")
    try:
        text = body.decode("utf-8")
        files = list(_from_json(json.loads(text), base) if kind.endswith("json") else _from_html(text, base))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(
            f"{host} answers with no page of a package index; check the index of pip or uv"
        ) from error
    return [_with_login(file, page) for file in files]


def _with_login(file: IndexFile, page: str) -> IndexFile:
    """The index's name and password go with its files where it serves them itself."""
    ours, theirs = urlsplit(page), urlsplit(file.url)
    if not split_login(page)[1] or ours.netloc.rpartition("@")[2] != theirs.netloc:
        return file
    return IndexFile(file.name, theirs._replace(netloc=ours.netloc).geturl(), file.size, file.sha256)


def _from_json(data: Any, base: str) -> Iterator[IndexFile]:
    for file in data["files"]:
        size = file.get("size")
        hashes = file.get("hashes") or {}
        yield IndexFile(
            str(file["filename"]),
            urljoin(base, str(file["url"])),
            size if isinstance(size, int) else None,
            hashes.get("sha256"),
        )


def _from_html(text: str, base: str) -> Iterator[IndexFile]:
    links = _Links()
    links.feed(text)
    for link in links.found:
        url, fragment = urldefrag(urljoin(links.base or base, link))
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        yield IndexFile(unquote(urlsplit(url).path.rpartition("/")[2]), url, None, sha256)


class _Links(HTMLParser):
    """Collects where a page's links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if tag == "base" and target:
            self.base = target
        elif tag == "a" and target:
            self.found.append(target)
