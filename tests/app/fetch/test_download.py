"""One file from a server that cuts, lies, changes, is slow or busy."""

import pytest

from app.fetch.fetch import Fetch, State
from app.fetch.sources import make_plan
from app.transfer import web
from app.transfer.errors import FetchError
from app.transfer.parts import unfinished
from tests.app.fetch.conftest import WAIT
from tests.app.fetch.served import NAME, PATH, digest, names, url
from tests.support.file_server import Fault, File


def test_a_file_arrives_whole_checked_and_read(served, fetched, models, model_bytes):
    progress = fetched(url(served, digest(model_bytes))).progress
    assert progress.state is State.DONE and progress.ended
    assert progress.paths == (models / NAME,)
    assert progress.problem is None
    assert (progress.done, progress.total) == (len(model_bytes), len(model_bytes))
    assert (models / NAME).read_bytes() == model_bytes
    assert names(models) == [NAME]


def test_cuts_are_gone_on_from_where_they_were(served, fetched, model_bytes):
    served.faults[PATH] = [Fault(cut=1000), Fault(cut=500), Fault(cut=0)]
    progress = fetched(url(served, digest(model_bytes))).progress
    assert progress.state is State.DONE
    asked = [headers.get("range") for headers in served.requests(PATH)]
    assert asked == [None, "bytes=1000-", "bytes=1500-", "bytes=1500-"]


def test_a_server_that_cuts_for_ever_leaves_a_part_that_goes_on_later(served, fetched, models, model_bytes):
    served.faults[PATH] = [Fault(cut=1000)] + 4 * [Fault(cut=0)]
    progress = fetched(url(served)).progress
    assert progress.state is State.FAILED
    assert "was cut" in progress.error
    assert names(models) == [f"{NAME}.part", f"{NAME}.part.json"]
    assert [(part.what, part.done, part.size) for part in unfinished(models)] == [
        (url(served), 1000, len(model_bytes))
    ]
    assert fetched(url(served)).progress.state is State.DONE
    last = served.requests(PATH)[-1]
    assert (last["range"], last["if-range"]) == ("bytes=1000-", '"one"')
    assert (models / NAME).read_bytes() == model_bytes


def test_a_server_without_ranges_begins_anew(served, fetched, models, model_bytes):
    served.files[PATH].ranges = False
    served.faults[PATH] = [Fault(cut=1000)]
    assert fetched(url(served, digest(model_bytes))).progress.state is State.DONE
    assert (models / NAME).read_bytes() == model_bytes


def test_cuts_at_one_place_of_a_server_without_ranges_are_not_tried_for_ever(served, fetched):
    served.files[PATH].ranges = False
    served.faults[PATH] = 50 * [Fault(cut=1000)]
    assert fetched(url(served)).progress.state is State.FAILED
    assert len(served.requests(PATH)) == 5


def test_a_file_that_changed_meanwhile_is_fetched_anew(served, fetched, models, model_bytes):
    served.faults[PATH] = [Fault(cut=1000)] + 4 * [Fault(cut=0)]
    fetched(url(served))
    served.files[PATH] = File(model_bytes[:-1] + b"\0", etag='"two"')
    assert fetched(url(served)).progress.state is State.DONE
    assert (models / NAME).read_bytes() == model_bytes[:-1] + b"\0"


def test_without_checksum_and_validator_nothing_is_added_to_a_part(served, fetched, models, model_bytes):
    served.files[PATH].etag = None
    served.faults[PATH] = [Fault(cut=1000)] + 4 * [Fault(cut=0)]
    fetched(url(served))
    assert fetched(url(served)).progress.state is State.DONE
    assert "range" not in served.requests(PATH)[-1]
    assert (models / NAME).read_bytes() == model_bytes


@pytest.mark.parametrize("left", ["{", "[]", '{"what": 3}', '{"what": "x", "size": "big"}'])
def test_odd_notes_beside_a_part_begin_anew(served, fetched, models, model_bytes, left):
    models.mkdir()
    (models / f"{NAME}.part").write_bytes(b"x" * 100)
    (models / f"{NAME}.part.json").write_text(left)
    assert unfinished(models) == []
    assert fetched(url(served)).progress.state is State.DONE
    assert (models / NAME).read_bytes() == model_bytes


def test_a_part_that_is_longer_than_the_file_begins_anew(served, fetched, models, model_bytes):
    served.faults[PATH] = [Fault(cut=1000)] + 4 * [Fault(cut=0)]
    fetched(url(served))
    (models / f"{NAME}.part").write_bytes(model_bytes + b"more")
    assert fetched(url(served)).progress.state is State.DONE
    assert (models / NAME).read_bytes() == model_bytes


def test_wrong_contents_are_named_and_deleted(served, fetched, models, model_bytes):
    served.faults[PATH] = [Fault(corrupt=True)]
    progress = fetched(url(served, digest(model_bytes))).progress
    assert progress.state is State.FAILED
    assert "is not what its checksum says" in progress.error and digest(model_bytes)[:12] in progress.error
    assert names(models) == []
    assert fetched(url(served, digest(model_bytes))).progress.state is State.DONE


def test_a_corrupted_part_is_found_at_the_end(served, fetched, models, model_bytes):
    checked = url(served, digest(model_bytes))
    served.faults[PATH] = [Fault(cut=1000)] + 4 * [Fault(cut=0)]
    fetched(checked)
    (models / f"{NAME}.part").write_bytes(b"x" * 1000)
    assert "checksum" in fetched(checked).progress.error
    assert names(models) == []


def test_a_web_page_is_no_model(served, fetched, models):
    served.files[PATH] = File(b"<html>Please log in</html>", type="text/html")
    progress = fetched(url(served)).progress
    assert "sends text/html, not a GGUF file" in progress.error
    assert names(models) == []


def test_a_broken_model_is_kept_and_said_so(served, fetched, models):
    served.files[PATH] = File(b"GGUF" + b"\xff" * 100)
    progress = fetched(url(served)).progress
    assert progress.state is State.DONE
    assert progress.problem
    assert names(models) == [NAME]


def test_a_server_that_does_not_say_how_much_comes(served, fetched, models, model_bytes):
    served.files[PATH] = File(model_bytes, sized=False, ranges=False)
    progress = fetched(url(served)).progress
    assert progress.state is State.DONE and progress.total is None
    assert (models / NAME).read_bytes() == model_bytes


def test_a_busy_server_is_waited_for_as_long_as_it_asks(served, fetched):
    served.faults[PATH] = [Fault(status=429, headers={"Retry-After": "0"}), Fault(status=503)]
    assert fetched(url(served)).progress.state is State.DONE


def test_a_server_that_asks_for_an_hour_is_not_waited_for(served, fetched):
    served.faults[PATH] = [Fault(status=429, headers={"Retry-After": "3600"})]
    assert "try again in about 60 min" in fetched(url(served)).progress.error


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "NAME:PASSWORD"), (403, "refuses"), (404, "check the name"), (500, "has a fault")],
)
def test_refusals_say_what_to_do(served, fetched, models, status, said):
    served.faults[PATH] = 9 * [Fault(status=status)]
    progress = fetched(url(served)).progress
    assert progress.state is State.FAILED
    assert said in progress.error and f"({status})" in progress.error and "\n" not in progress.error


def test_a_name_and_a_password_go_with_every_request_and_into_no_file(served, fetched, models):
    address = url(served).replace("http://", "http://me:s%40cret@")
    served.faults[PATH] = [Fault(cut=1000)] + 4 * [Fault(cut=0)]
    fetch = fetched(address)
    assert all(headers["authorization"] == "Basic bWU6c0BjcmV0" for _, headers in served.asked)
    assert "cret" not in repr(fetch.plan) + fetch.progress.error
    assert "cret" not in "".join(path.read_text("latin-1") for path in models.iterdir())


def test_a_server_that_falls_silent_is_asked_again(served, monkeypatch, models, model_bytes):
    fetch = Fetch(make_plan(url(served), (), environment={}), models)
    served.faults[PATH] = [Fault(hold=1000)]
    opened, real = [], web.Web._open

    def first_is_left_soon(self, request):
        answer = real(self, request)
        if not opened:
            answer.fp.raw._sock.settimeout(0.05)
        opened.append(request)
        return answer

    monkeypatch.setattr(web.Web, "_open", first_is_left_soon)
    fetch.start()
    assert fetch.wait(WAIT)
    assert fetch.progress.state is State.DONE and len(opened) > 1
    assert (models / NAME).read_bytes() == model_bytes


def test_a_server_that_sends_without_end_is_not_listened_to(served, models, model_bytes):
    plan = make_plan(url(served), (), environment={})
    served.files[PATH] = File(model_bytes + b"more", sized=False, ranges=False)
    fetch = Fetch(plan, models)
    fetch.start()
    assert fetch.wait(WAIT)
    assert "sends more than it said" in fetch.progress.error
    assert names(models) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:1/x.gguf", "127.0.0.1 cannot be reached"),
        ("http://no-such-host.invalid/x.gguf", "no network, or there is no host no-such-host.invalid"),
        ("http://127.0.0.1:1/page", "must end in the name of a .gguf file"),
        ("http://127.0.0.1:1/x.gguf#sha256=12", "64 digits"),
        ("ftp://127.0.0.1/x.gguf", "no model of the catalogue has this name"),
    ],
)
def test_addresses_that_lead_nowhere(monkeypatch, address, said):
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(FetchError, match=said):
        make_plan(address, (), environment={})
