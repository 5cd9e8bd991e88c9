"""The models that an empty chat offers to who has only the demo model."""

from collections.abc import Sequence

from app.models.mention import is_due, remember
from app.screens.context import AppContext
from app.screens.fetching import Fetchable, Stock

_MARK = "models-offered"
_MOST_ON_A_CPU = 4e9
"""Every token reads all weights: a larger model fits, but nobody waits for its answers."""
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
    """The largest model that runs well, and one that is there much sooner."""
    most = stock.free if stock.on_gpu else min(stock.free, _MOST_ON_A_CPU)
    rows = sorted(stock.fetchable(()), key=lambda row: -row.memory)
    best = next((row for row in rows if 0 < row.memory <= most), None)
    if best is None:
        return []
    return [best, *[row for row in rows if 0 < row.memory * _SOONER <= best.memory][:1]]


def dismiss(context: AppContext) -> None:
    """Never offer again."""
    remember(context.locations.state / _MARK)
