"""A place for a history file, and stores on it that are closed at the end."""

import pytest

from app.history.store import HistoryStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "history.db"


@pytest.fixture
def open_store(path):
    stores = []

    def open_it(where=path, **options):
        store = HistoryStore(where, **options)
        stores.append(store)
        assert store.flush()
        return store

    yield open_it
    for store in stores:
        store.close()
