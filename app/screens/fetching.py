"""The app's fetches of models: what can be fetched, what is under way, and news of it for the screens.

Knows no widget. What fetches is imported when it is first asked for, never for the first frame.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from app.models.fit.device import Memory
from app.models.fit.expectation import expect
from app.models.fit.fit_words import speed_text
from app.models.fit.pace import Pace, pace_of
from app.models.fit.speeds import SpeedStore
from app.models.found import ModelSearch
from app.settings.paths import Locations, private_directory
from app.settings.words import size_text

if TYPE_CHECKING:
    from app.fetch.catalogue import Entry
    from app.fetch.fetch import Fetch, Fetches, Progress
    from app.transfer.parts import Unfinished
    from app.transfer.plan import Plan
    from app.transfer.web import Stop

Deliver = Callable[[Callable[[], None]], None]
_LONGEST_TITLE = 16


@dataclass(frozen=True, slots=True)
class Fetchable:
    """One model that can be fetched. what: the word that fetches it; begun: how much is there already.

    terms: its size, memory, expected speed and licence. shortage: why it does not fit and what would, or "".
    size: bytes that are fetched, 0 where that is not known; memory: bytes that it takes with a chat of 8,192
    tokens; tok_s: as it is expected to write.
    """

    what: str
    title: str
    terms: str = ""
    good_at: str = ""
    shortage: str = ""
    begun: str = ""
    size: int = 0
    memory: int = 0
    tok_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stock:
    """What can be fetched, as it was looked up once, and the device that it is for.

    memory: None where settings name a device that is not there.
    """

    entries: "Sequence[Entry]" = ()
    memory: Memory | None = None
    pace: Pace = field(default_factory=Pace)
    unfinished: "Sequence[Unfinished]" = ()
    warnings: Sequence[str] = ()

    @property
    def free(self) -> int | None:
        """Bytes for a model; None: not known."""
        return self.memory.room.free_bytes if self.memory is not None else None

    def fetchable(self, stems: Iterable[str]) -> list[Fetchable]:
        """All that is not among the models of these file names, what was begun first."""
        begun: dict[str, list[Unfinished]] = {}
        for part in self.unfinished:
            begun.setdefault(part.what, []).append(part)
        there = {_plain(stem) for stem in stems}
        titles = {entry.name: entry.title for entry in self.entries}
        rows = [
            Fetchable(what, titles.get(what, what), begun=_amount(parts)) for what, parts in begun.items()
        ]
        return rows + [
            self._described(entry)
            for entry in self.entries
            if entry.name not in begun and not is_there(entry, there)
        ]

    def _described(self, entry: "Entry") -> Fetchable:
        wants = expect(entry, self.memory, self.pace)
        size = size_text(entry.file_bytes) if entry.file_bytes else ""
        memory = f"{size_text(wants.memory)} of memory" if wants.memory else ""
        terms = (size, memory, speed_text(wants.tok_s), entry.licence)
        return Fetchable(
            entry.name,
            entry.title,
            ", ".join(filter(None, terms)),
            entry.good_at,
            wants.shortage,
            size=entry.file_bytes,
            memory=wants.memory,
            tok_s=wants.tok_s,
        )


def is_there(entry: "Entry", stems: set[str]) -> bool:
    """Tell whether one of these plain file names is that of the entry, by its files or its repository."""
    names = {_plain(file.name.removesuffix(".gguf")) for file in entry.files}
    for source in entry.sources:
        prefix, _, rest = source.partition(":")
        repository, _, quant = rest.partition(":")
        name = _plain(repository.rpartition("/")[2].upper().removesuffix("-GGUF"))
        if prefix == "hf" and quant:
            names.add(name + _plain(quant))
        elif prefix == "hf" and any(stem.startswith(name) for stem in stems):
            return True
    return bool(names & stems)


def _plain(stem: str) -> str:
    """A file's name without its part of a split, as it is compared."""
    return "".join(filter(str.isalnum, stem.casefold().partition("-00001-of-")[0]))


def _amount(parts: "Sequence[Unfinished]") -> str:
    done = size_text(sum(part.done for part in parts))
    sizes = [part.size for part in parts if part.size is not None]
    return f"{done} of {size_text(sum(sizes))}" if len(sizes) == len(parts) else done


@dataclass
class Fetching:
    """Starts fetches and remembers how those of this run of the app are.

    deliver: runs work on the UI's thread. tell: called there with a fetch whose state or percentage changed.
    """

    places: Locations
    deliver: Deliver
    tell: "Callable[[Fetch], None]"
    jobs: "dict[str, Fetch]" = field(default_factory=dict)
    """By the word that fetches it, also those that are paused or have failed."""
    _fetches: "Fetches | None" = None
    _forget: list[Callable[[], None]] = field(default_factory=list)

    def look_up(self, search: ModelSearch) -> Stock:
        """Read the catalogue, what was begun and the free memory; call it off the UI."""
        from app.fetch.catalogue import read_catalogue
        from app.models.fit.device import memory_of
        from app.transfer.parts import unfinished

        entries, warnings = read_catalogue(self.places.catalogue_file)
        memory = memory_of(search)
        pace = Pace() if memory is None else pace_of(search, memory, SpeedStore(self.places.speeds_file))
        return Stock(entries, memory, pace, unfinished(self.places.models), warnings)

    def plan(self, what: str, stock: Stock, stop: "Stop") -> "Plan":
        """Find out what a word means; call it off the UI. Raises `FetchError`."""
        from app.fetch.sources import make_plan

        fits = stock.memory.holds if stock.memory is not None else None
        return make_plan(what, stock.entries, free_memory=stock.free, fits=fits, stop=stop)

    def start(self, plan: "Plan") -> "Fetch":
        """Begin a fetch or go on with it. Raises `OSError` where there can be no folder for it."""
        from app.fetch.fetch import Fetches

        if self._fetches is None:
            # Conversations are kept beside the models.
            private_directory(self.places.data)
            self._fetches = Fetches(self.places.models)
        fetch = self._fetches.start(plan)
        if self.jobs.get(plan.what) is not fetch:
            self.jobs[plan.what] = fetch
            self._forget.append(fetch.listen(partial(self._hear, fetch, [])))
            self.tell(fetch)
        return fetch

    def cancel(self, row: Fetchable) -> None:
        """End a fetch and delete what is there of it. Raises `FetchError` where another window fetches it."""
        if (job := self.jobs.get(row.what)) is not None:
            job.cancel()
            return
        from app.transfer.parts import drop, unfinished

        drop(part for part in unfinished(self.places.models) if part.what == row.what)

    @property
    def words(self) -> str:
        """What the status line says: `fetching SmolLM2 42 %`; "" while nothing is fetched."""
        going = [(job, job.progress) for job in self.jobs.values()]
        going = [(job, progress) for job, progress in going if not progress.ended]
        if not going:
            return ""
        title = going[0][0].plan.title
        if len(title) > _LONGEST_TITLE:
            title = title[:_LONGEST_TITLE].rpartition(" ")[0] or title[:_LONGEST_TITLE]
        what = title if len(going) == 1 else f"{len(going)} models"
        done = sum(progress.done for _, progress in going)
        totals = [progress.total for _, progress in going if progress.total]
        share = f" {100 * done // sum(totals)} %" if len(totals) == len(going) else ""
        return f"fetching {what}{share}"

    def leave(self) -> None:
        """Pause everything and tell nobody any more; `close` waits for it."""
        for forget in self._forget:
            forget()
        for job in self.jobs.values():
            job.pause()

    def close(self, seconds: float) -> None:
        """Pause everything and wait for it: at the next start it can go on."""
        if self._fetches is not None:
            self._fetches.close(seconds)

    def _hear(self, fetch: "Fetch", before: list[object], progress: "Progress") -> None:
        """Hear of a fetch, on its own thread; what shows no difference wakes nobody."""
        share = 100 * progress.done // progress.total if progress.total else 0
        if before != [progress.state, share]:
            before[:] = [progress.state, share]
            self.deliver(partial(self.tell, fetch))
