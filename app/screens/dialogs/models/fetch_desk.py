"""What the model picker does with a row that can be fetched, and what its foot line says of it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.screen import Screen

from app.fetch.fetch import Fetch, State
from app.screens.fetching import Fetchable, Fetching, Stock
from app.settings.words import size_text
from app.transfer.errors import FetchError
from app.transfer.web import Stop, Stopped

if TYPE_CHECKING:
    from app.transfer.plan import Plan


class FetchDesk:
    """Plans, asks, fetches, pauses and cancels; the list is the picker's.

    changed: called when a row or the foot line has to be drawn again.
    """

    def __init__(self, fetching: Fetching, screen: Screen, changed: Callable[[], None]) -> None:
        self.stock = Stock()
        self._fetching = fetching
        self._screen = screen
        self._changed = changed
        self._at = ""
        self._plan: Plan | None = None
        self._said = ""
        self._asking = False
        self._stop = Stop()

    def move_to(self, key: str) -> None:
        """Another row is highlighted: what was asked about the one before is over."""
        if key != self._at:
            self.leave()
            self._at, self._plan, self._said, self._asking = key, None, "", False

    def leave(self) -> None:
        """Ask no server any more."""
        self._stop.set()

    def enter(self, row: Fetchable) -> str:
        """Plan; the second time, fetch. Go on with what is paused or has failed.

        Returns the word of a fetch that has begun, else "".
        """
        job = self._job(row)
        if job is not None and not job.progress.ended:
            return ""
        plan = job.plan if job is not None else self._plan
        if plan is not None:
            self._plan, self._said = None, ""
            return plan.what if self._start(plan) else ""
        if not self._asking:
            self._asking, self._said = True, f"Asking for {row.title}…"
            self._stop = Stop()
            self._screen.run_worker(self._ask(row, self._stop), exclusive=True, group="plan")
        self._changed()
        return ""

    def can_pause(self, row: Fetchable) -> bool:
        """Whether there is anything to pause or to go on with."""
        return self._job(row) is not None

    def pause(self, row: Fetchable) -> None:
        """Pause, or go on."""
        job = self._job(row)
        if job is not None and job.progress.ended:
            self._start(job.plan)
        elif job is not None:
            job.pause()
        self._changed()

    def can_cancel(self, row: Fetchable) -> bool:
        """Whether there is anything to delete."""
        return self._job(row) is not None or bool(row.begun)

    def cancel(self, row: Fetchable) -> None:
        """Delete what is there of a fetch."""
        try:
            self._fetching.cancel(row)
        except (FetchError, OSError) as error:
            self._said = str(error)
        self._changed()

    def foot(self, row: Fetchable) -> str:
        """What the keys do on this row, or what was found out about it."""
        if self._said:
            return self._said
        job = self._job(row)
        if job is None:
            cancels = " · Delete drops what is there" if row.begun else ""
            return f"Enter {'goes on' if row.begun else 'fetches it'}{cancels} · Esc leaves"
        if job.progress.ended:
            return "Enter or p goes on · Delete cancels · Esc leaves"
        return "p pauses · Delete cancels · Esc leaves, and the fetch goes on"

    def _job(self, row: Fetchable) -> Fetch | None:
        job = self._fetching.jobs.get(row.what)
        over = job is None or job.progress.state in (State.DONE, State.CANCELLED)
        return None if over else job

    def _start(self, plan: "Plan") -> bool:
        try:
            self._fetching.start(plan)
        except OSError as error:
            self._said = f"{error.filename}: {error.strerror}"
            self._changed()
            return False
        return True

    async def _ask(self, row: Fetchable, stop: Stop) -> None:
        try:
            plan = await asyncio.to_thread(self._fetching.plan, row.what, self.stock, stop)
        except Stopped:
            return
        except FetchError as error:
            self._plan, self._said = None, str(error)
        else:
            self._plan, self._said = plan, _question(plan, self.stock.free)
        self._asking = False
        self._changed()


def _question(plan: "Plan", free: int | None) -> str:
    """Size, licence and what Enter does, and whatever is to be known before."""
    size = size_text(plan.size) if plan.size is not None else "unknown size"
    licence = f"{plan.licence.name} ({plan.licence.url})" if plan.licence.url else plan.licence.name
    needed = sum(model.size or 0 for model in plan.models)
    short = ""
    if free is not None and needed > free:
        short = f"It needs more than {size_text(needed)} of memory; {size_text(free)} are free. "
    agrees = "agrees to the licence and fetches it" if plan.licence.consent else "fetches it"
    notes = "".join(f"{note}. " for note in plan.notes)
    return f"{notes}{plan.title} from {plan.source}: {size}, licence {licence}. {short}Enter {agrees}."
