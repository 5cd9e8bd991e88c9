"""Fetches as a whole: paused, cancelled, several at once, listened to, and where their files go."""

import shutil

import pytest

from app.fetch.fetch import Fetch, Fetches, State
from app.fetch.sources import make_plan
from app.transfer import download, web
from app.transfer.parts import Part
from tests.app.fetch.conftest import WAIT
from tests.app.fetch.served import NAME, PATH, names, until, url
from tests.support.file_server import Fault, File


def test_a_file_that_is_there_is_not_fetched_again(served, fetched, models):
    fetched(url(served))
    assert fetched(url(served)).progress.state is State.DONE
    assert len(served.requests(PATH)) == 1


def test_another_file_of_the_name_is_left_alone(served, fetched, models):
    models.mkdir()
    (models / NAME).write_bytes(b"mine")
    progress = fetched(url(served)).progress
    assert progress.state is State.FAILED
    assert f"{models / NAME} is there already" in progress.error
    assert (models / NAME).read_bytes() == b"mine"


def test_what_is_waited_for_is_told(served, models):
    served.faults[PATH] = [Fault(status=429, headers={"Retry-After": "50"})]
    fetch = Fetch(make_plan(url(served), (), environment={}), models)
    fetch.start()
    until(fetch, lambda progress: "asked too often (429)" in progress.waiting)
    fetch.pause()
    assert fetch.wait(WAIT)
    assert fetch.progress.state is State.PAUSED and fetch.progress.waiting == ""


def test_a_pause_cuts_a_silent_server_off_and_it_goes_on_later(served, models, model_bytes, monkeypatch):
    monkeypatch.setattr(web, "_TIMEOUT", 100 * WAIT)
    served.faults[PATH] = [Fault(hold=1000)]
    fetch = Fetch(make_plan(url(served), (), environment={}), models)
    fetch.start()
    until(fetch, lambda progress: progress.done == 1000)
    fetch.pause()
    assert fetch.wait(WAIT)
    assert (fetch.progress.state, fetch.progress.done) == (State.PAUSED, 1000)
    assert names(models) == [f"{NAME}.part", f"{NAME}.part.json"]
    fetch.start()
    assert fetch.wait(WAIT)
    assert fetch.progress.state is State.DONE
    assert served.requests(PATH)[-1]["range"] == "bytes=1000-"
    assert (models / NAME).read_bytes() == model_bytes


def test_a_file_that_changed_between_asking_and_fetching_is_said_so(served, models, model_bytes):
    plan = make_plan(url(served), (), environment={})
    served.files[PATH].body += b"more"
    fetch = Fetch(plan, models)
    fetch.start()
    assert fetch.wait(WAIT)
    assert "the file has changed" in fetch.progress.error
    served.files[PATH].body = model_bytes
    fetch.start()
    assert fetch.wait(WAIT)
    assert fetch.progress.state is State.DONE and fetch.progress.error is None


def test_a_listener_that_fails_is_not_called_again_and_ends_nothing(served, models):
    called = []

    def gone(progress):
        called.append(progress)
        raise RuntimeError("no app any more")

    fetch = Fetch(make_plan(url(served), (), environment={}), models)
    fetch.listen(gone)
    moments = []
    forget = fetch.listen(moments.append)
    fetch.start()
    assert fetch.wait(WAIT)
    assert fetch.progress.state is State.DONE and len(called) == 1
    assert [moments[0].state, moments[-1].state] == [State.RUNNING, State.DONE]
    forget()


def test_speed_and_time_left_come_of_the_last_seconds(served, models, model_bytes):
    clock = iter(range(1000))
    served.faults[PATH] = [Fault(hold=len(model_bytes) // 2)]
    fetch = Fetch(make_plan(url(served), (), environment={}), models, clock=lambda: float(next(clock)))
    fetch.start()
    until(fetch, lambda progress: progress.done == len(model_bytes) // 2)
    moment = fetch.progress
    assert moment.speed > 0
    assert moment.seconds_left == pytest.approx((len(model_bytes) - moment.done) / moment.speed)
    fetch.cancel()
    assert fetch.wait(WAIT)
    assert (fetch.progress.speed, fetch.progress.seconds_left) == (0.0, None)


@pytest.mark.parametrize("paused_first", [False, True])
def test_a_cancel_leaves_nothing(served, models, paused_first):
    served.faults[PATH] = [Fault(hold=1000)]
    fetch = Fetch(make_plan(url(served), (), environment={}), models)
    fetch.start()
    until(fetch, lambda progress: progress.done == 1000)
    if paused_first:
        fetch.pause()
        assert fetch.wait(WAIT)
    fetch.cancel()
    assert fetch.wait(WAIT)
    assert (fetch.progress.state, fetch.progress.done) == (State.CANCELLED, 0)
    assert names(models) == []


def test_two_at_once_and_one_is_one_file(served, models, model_bytes):
    served.files["/other.gguf"] = File(model_bytes)
    served.faults[PATH], served.faults["/other.gguf"] = [Fault(hold=1000)], [Fault(hold=1000)]
    fetches = Fetches(models)
    plans = [make_plan(served.url(path), (), environment={}) for path in (PATH, "/other.gguf")]
    started = [fetches.start(plan) for plan in plans]
    assert fetches.start(plans[0]) is started[0]
    for fetch in started:
        until(fetch, lambda progress: progress.done == 1000)
    assert fetches.active == started
    served.go_on.set()
    assert all(fetch.wait(WAIT) for fetch in started)
    assert names(models) == ["other.gguf", NAME]
    assert fetches.active == []


def test_closing_pauses_all(served, models):
    served.faults[PATH] = [Fault(hold=1000)]
    fetches = Fetches(models)
    fetch = fetches.start(make_plan(url(served), (), environment={}))
    until(fetch, lambda progress: progress.done == 1000)
    fetches.close()
    assert fetch.progress.state is State.PAUSED


def test_two_windows_do_not_write_into_one_part(served, fetched, models):
    with Part(models, NAME).open():
        progress = fetched(url(served)).progress
    assert "being fetched by another window" in progress.error
    assert fetched(url(served)).progress.state is State.DONE


def test_a_disk_without_room_is_said_before_a_byte_comes(served, fetched, monkeypatch, model_bytes):
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    progress = fetched(url(served)).progress
    assert "10 B" in progress.error and "make room" in progress.error
    assert served.requests(PATH) == []


def test_a_disk_that_becomes_full_keeps_the_part(served, fetched, models, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    progress = fetched(url(served)).progress
    assert "is full" in progress.error and "goes on" in progress.error
    assert names(models) == [f"{NAME}.part", f"{NAME}.part.json"]


def test_an_unwritable_folder_is_named(served, fetched, models):
    models.write_text("a file")
    progress = fetched(url(served)).progress
    assert progress.state is State.FAILED and str(models) in progress.error


def test_parts_of_a_split_model_are_named_together_at_the_end(served, fetched, models, model_bytes):
    paths = [f"/m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path in paths:
        served.files[path] = File(model_bytes)
    served.faults[paths[1]] = 5 * [Fault(cut=0)]
    assert fetched(served.url(paths[0])).progress.state is State.FAILED
    assert all(not name.endswith(".gguf") for name in names(models))
    progress = fetched(served.url(paths[0])).progress
    assert [path.name for path in progress.paths] == [path[1:] for path in paths]
    assert len(served.requests(paths[0])) == 1
