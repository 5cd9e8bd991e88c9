"""The library of prompts: texts that the reader keeps as files, with places to fill in."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PLACEHOLDER = re.compile(r"\{\{\s*([^{}\n]+?)\s*\}\}")
SELECTION = "selection"
"""The placeholder that what is selected in the chat is put into."""
_NAME = re.compile(r"[\w-]+")
_LARGEST = 100_000
_MOST = 500


@dataclass(frozen=True, slots=True)
class KeptPrompt:
    """A prompt of the library; its name is its file's."""

    name: str
    help: str
    text: str

    def filled(self, selection: str, rest: str) -> str:
        """Return its text with what is selected, and what was written behind its name.

        That goes into the first place to fill in; where there is none, behind the text.
        """
        text = self.text
        if selection:
            text = PLACEHOLDER.sub(lambda found: selection if found[1] == SELECTION else found[0], text)
        if not rest:
            return text
        if PLACEHOLDER.search(text) is None:
            return f"{text}\n\n{rest}"
        return PLACEHOLDER.sub(lambda _: rest, text, count=1)


def read_prompts(folder: Path, taken: Collection[str] = ()) -> tuple[list[KeptPrompt], list[str]]:
    """Return the prompts of a folder by name, and a sentence for each file that is none.

    taken: names that mean something else already. A folder that is not there holds no prompts.
    """
    prompts: dict[str, KeptPrompt] = {}
    problems: list[str] = []
    try:
        paths = sorted(path for path in folder.glob("*.md") if not path.name.startswith("."))
    except OSError as error:
        return [], [f"{folder}: cannot be read ({error.strerror})"]
    if len(paths) > _MOST:
        problems.append(f"{folder}: only the first {_MOST} of {len(paths)} prompts are used")
    for path in paths[:_MOST]:
        try:
            prompt = _read(path)
            if prompt.name in taken:
                raise ValueError(f"/{prompt.name} is a command of the app; give the file another name")
            if prompt.name in prompts:
                raise ValueError(f"there is another prompt /{prompt.name}; give the file another name")
        except ValueError as error:
            problems.append(f"{path}: {error}")
        else:
            prompts[prompt.name] = prompt
    return list(prompts.values()), problems


def _read(path: Path) -> KeptPrompt:
    """Read a prompt; `ValueError` says what is wrong with the file."""
    name = "-".join(path.stem.split())
    if not _NAME.fullmatch(name):
        raise ValueError("a prompt's name has only letters, digits, - and _; rename the file")
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not text in UTF-8") from error
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    first, _, rest = text.partition("\n")
    described = first.startswith("# ")
    body = (rest if described else text).strip()
    if not body:
        raise ValueError("it holds no prompt")
    return KeptPrompt(name, first[2:].strip() if described else "", body)
