"""Which rows the model picker has: what was found and what can be fetched, filtered and sorted."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from app.endpoints.service import Listing
from app.models.endpoint_keys import endpoint_key
from app.models.listed.listing import ModelFile
from app.models.listed.order import Known, sort_models
from app.screens.dialogs.models.model_rows import Heading, Remote, Row, title_of
from app.screens.fetching import Fetchable
from app.settings.fuzzy import fit_score

if TYPE_CHECKING:
    from app.fetch.fetch import Fetch

_Row = TypeVar("_Row", ModelFile, Fetchable, Remote)


class ModelList:
    """jobs: fetches of this run of the app, by their words."""

    def __init__(self, jobs: "Mapping[str, Fetch]") -> None:
        self.found: Sequence[ModelFile] = ()
        self.fetchable: Sequence[Fetchable] = ()
        self.searched = False
        """Whether files have been looked for."""
        self.known = Known()
        self.endpoints: dict[str, Listing | None] = {}
        """By its name what each endpoint lists; None until it has answered."""
        self._jobs = jobs

    def rows(self, query: str) -> list[Row]:
        """Return what a filter leaves, the best first; without one, in the reader's order."""
        models = sort_models(self.found, self.known, self.known.order)
        found = _matching(query, models, _text_of_model)
        fetchable = _matching(
            query, self._all_fetchable(), lambda row: f"{row.title} {row.what} {row.good_at}"
        )
        heading = [Heading("Can be fetched")] if fetchable else []
        return [*found, *self._remote(query), *heading, *fetchable]

    def _remote(self, query: str) -> list[Row]:
        """The models of each endpoint under its name; one that does not answer says why."""
        rows: list[Row] = []
        for name, listing in self.endpoints.items():
            if listing is None:
                rows += [] if query else [Heading(f"{name} is asked for its models…")]
                continue
            matching = _matching(query, _remote_rows(listing), lambda row: f"{row.title} {row.endpoint.name}")
            rows += [Heading(f"At {name}"), *matching] if matching else []
        return rows

    def _all_fetchable(self) -> list[Fetchable]:
        from app.fetch.fetch import State

        if not self.searched:
            # What is highlighted before the models are there would stay so.
            return []
        known = {row.what for row in self.fetchable}
        jobs = [job for what, job in self._jobs.items() if what not in known]
        over = (State.DONE, State.CANCELLED)
        typed = [Fetchable(job.plan.what, job.plan.title) for job in jobs if job.progress.state not in over]
        return [*typed, *self.fetchable]


def _remote_rows(listing: Listing) -> list[Remote]:
    endpoint = listing.endpoint
    rows = [
        Remote(endpoint_key(endpoint.name, model.id), model.id, endpoint, model.context_length)
        for model in listing.models
    ]
    if listing.problem is not None:
        rows.append(Remote(endpoint_key(endpoint.name, ""), endpoint.url, endpoint, problem=listing.problem))
    return rows


def _text_of_model(model: ModelFile) -> str:
    """All that a model is found by, its title first."""
    names = " ".join(model.found.names) if model.found is not None else ""
    family = model.summary.architecture if model.summary is not None else ""
    origin = model.found.origin if model.found is not None else ""
    return f"{title_of(model)} {model.quantization} {names} {family} {origin}"


def _matching(query: str, rows: list[_Row], text: Callable[[_Row], str]) -> list[_Row]:
    if not query:
        return rows
    scored = [(fit_score(query, text(row)), row) for row in rows]
    scored.sort(key=lambda pair: -pair[0])
    return [row for score, row in scored if score > 0]
