"""The models that an empty chat offers to who has only the demo model."""

from collections.abc import Sequence

from app.models.mention import is_due, remember
from app.screens.context import AppContext
from app.screens.fetching import Fetchable, Stock

_MARK = "models-offered"
_READING_PACE = 8.0
"""Tokens a second that a person reads: nobody waits for the answers of a slower model."""
_SOONER = 4


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
    rows = sorted(quick, key=lambda row: -row.memory)
    if not rows:
        return sorted(fitting, key=lambda row: -(row.tok_s or 0.0))[:1]
    return [rows[0], *[row for row in rows if row.memory * _SOONER <= rows[0].memory][:1]]


def dismiss(context: AppContext) -> None:
    """Never offer again."""
    remember(context.locations.state / _MARK)
