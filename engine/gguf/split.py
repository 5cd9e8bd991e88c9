"""The naming of models that are split over several files: NAME-00001-of-00003.gguf."""

import re
from dataclasses import dataclass
from pathlib import Path

_PART_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class PartName:
    """The parsed name of one part; `number` counts from 1."""

    folder: Path
    stem: str
    number: int
    count: int
    suffix: str

    def sibling(self, number: int) -> Path:
        """Path of part `number` of the same model."""
        return self.folder / f"{self.stem}-{number:05d}-of-{self.count:05d}{self.suffix}"


def parse_part_name(path: Path) -> PartName | None:
    """The parts of a split file's name, or None when it is not named like one."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        return None
    return PartName(path.parent, match["stem"], number, count, path.name[-len(".gguf") :])
