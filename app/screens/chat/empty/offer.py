"""The models that an empty chat offers to who has only the demo model."""

from collections.abc import Sequence

from app.models.mention import is_due, remember
from app.screens.context import AppContext
from app.screens.fetching import Fetchable, Stock

_MARK = "models-offered"
_READING_PACE = 8.0
"""Tokens a second that a person reads: nobody waits for the answers of a slower model."""
_SOONER = 2.5
"""So many times smaller a file is there much sooner."""


def offer(context: AppContext) -> Sequence[Fetchable]:
    """The one or two models that suit this computer; none where that was dismissed or models are there.

    Asks the device and reads files: call off the UI.
    """
    search = context.model_search()
    if not is_due(context.locations.state / _MARK, search):
        return ()
    return best_of(context.fetching.look_up(search))


def best_of(stock: Stock) -> list[Fetchable]:
    """The largest model that fits and writes as fast as people read, and one that is there much sooner.

    Where all that fit are slower, the quickest.
    """
    if stock.memory is None:
        return []
    fitting = [row for row in stock.fetchable(()) if row.memory and not row.shortage]
    quick = [row for row in fitting if row.tok_s is None or row.tok_s >= _READING_PACE]
    if not quick:
        return sorted(fitting, key=lambda row: -(row.tok_s or 0.0))[:1]
    best, *smaller = sorted(quick, key=lambda row: -row.memory)
    return [best, *[row for row in smaller if _fetched(row) * _SOONER <= _fetched(best)][:1]]


def _fetched(row: Fetchable) -> int:
    """Bytes that are fetched, or what grows with them."""
    return row.size or row.memory


def dismiss(context: AppContext) -> None:
    """Never offer again."""
    remember(context.locations.state / _MARK)
