"""Repositories of a hub that is played by a server of the test."""

import hashlib
import json

import huggingface_hub.constants as hub
import pytest

from app.fetch.catalogue import Entry
from app.fetch.fetch import State
from app.fetch.sources import make_plan
from app.transfer.errors import FetchError
from engine import Outline
from tests.support.file_server import Fault, File

REVISION = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "acme/Tiny-GGUF"


class Repository:
    """A repository on the test's server; its files are sent by another host, as those of the real hub are."""

    def __init__(self, server, name=REPOSITORY):
        self.server, self.name = server, name
        self.about = {
            "id": name,
            "sha": REVISION,
            "private": False,
            "gated": False,
            "tags": [],
            "siblings": [],
        }
        self.card(license="apache-2.0")

    def card(self, **data):
        self.about["cardData"] = data
        self.publish()

    def add(self, path, body, size=None):
        sha256 = hashlib.sha256(body).hexdigest()
        size = len(body) if size is None else size
        lfs = {"sha256": sha256, "size": size, "pointerSize": 134}
        self.about["siblings"].append({"rfilename": path, "size": size, "blobId": "b", "lfs": lfs})
        resolve = f"/{self.name}/resolve/{REVISION}/{path}"
        self.server.files[resolve] = File(redirect=self.server.url(f"/cdn/{path}", host="localhost"))
        self.server.files[f"/cdn/{path}"] = File(body)
        self.publish()

    def publish(self):
        body = json.dumps(self.about).encode()
        self.server.files[f"/api/models/{self.name}"] = File(body, type="application/json")


@pytest.fixture
def repository(server, monkeypatch, tmp_path):
    endpoint = server.url("")
    monkeypatch.setattr(hub, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        hub, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return Repository(server)


def plan(what=f"hf:{REPOSITORY}", free=10**9):
    return make_plan(what, (), environment={}, free_memory=free)


def test_a_named_quantisation_is_fetched_and_checked(repository, fetched, models, model_bytes, server):
    repository.add("tiny-Q4_K_M.gguf", b"GGUF other")
    repository.add("tiny-Q8_0.gguf", model_bytes)
    fetch = fetched(f"hf:{REPOSITORY}:q8_0")
    path = models / "acme" / "Tiny-GGUF" / "tiny-Q8_0.gguf"
    assert fetch.progress.state is State.DONE and fetch.progress.paths == (path,)
    assert path.read_bytes() == model_bytes
    assert (fetch.plan.what, fetch.plan.title) == (f"hf:{REPOSITORY}:Q8_0", "Tiny Q8_0")
    assert (fetch.plan.licence.name, fetch.plan.licence.consent) == ("apache-2.0", False)
    tokens = {path: headers.get("authorization") for path, headers in server.asked}
    assert tokens[f"/{REPOSITORY}/resolve/{REVISION}/tiny-Q8_0.gguf"] == "Bearer hf_secret"
    assert tokens["/cdn/tiny-Q8_0.gguf"] is None
    assert "hf_secret" not in repr(fetch.plan)


def test_a_smaller_quantisation_that_fits_is_named_where_an_entry_s_does_not(repository):
    for label, size in (("Q8_0", 800), ("Q4_K_M", 400), ("IQ4_XS", 300), ("Q3_K_M", 250), ("Q2_K", 200)):
        repository.add(f"tiny-{label}.gguf", b"GGUF", size=size)
    shape = Outline("Q4_K_M", 2, 256, 4, 2, 64, 1024, 4096, ffn=512)
    entry = Entry(
        "tiny", "Tiny", "tests", "MIT", "", False, "llama", 1, 0, (f"hf:{REPOSITORY}:Q4_K_M",), shape=shape
    )

    def notes(*fitting):
        fits = lambda outline: outline.type in fitting and outline.width == 256  # noqa: E731
        return make_plan("tiny", [entry], environment={}, free_memory=10**9, fits=fits).notes

    assert notes("Q8_0", "Q4_K_M", "Q2_K") == ()
    assert notes("Q8_0", "Q3_K_M", "Q2_K") == (
        f"Q4_K_M does not fit; Q3_K_M, 250 B, does: hf:{REPOSITORY}:Q3_K_M",
    )
    assert notes() == ()


def test_corruption_on_the_way_is_found_by_the_hubs_checksum(
    repository, fetched, models, model_bytes, server
):
    repository.add("tiny.gguf", model_bytes)
    server.faults["/cdn/tiny.gguf"] = [Fault(corrupt=True)]
    assert "is not what its checksum says" in fetched(f"hf:{REPOSITORY}").progress.error
    assert [path for path in models.rglob("*") if path.is_file()] == []


def test_cuts_are_gone_on_from(repository, fetched, model_bytes, server):
    repository.add("tiny.gguf", model_bytes)
    server.faults["/cdn/tiny.gguf"] = [Fault(cut=1000)]
    assert fetched(f"hf:{REPOSITORY}").progress.state is State.DONE
    assert server.requests("/cdn/tiny.gguf")[1]["range"] == "bytes=1000-"


def test_parts_of_a_split_model_come_together_into_one_folder(repository, fetched, models, model_bytes):
    for number in (1, 2):
        repository.add(f"Q4_K_M/big-Q4_K_M-0000{number}-of-00002.gguf", model_bytes)
    progress = fetched(f"hf:{REPOSITORY}").progress
    assert [path.name for path in progress.paths] == [
        "big-Q4_K_M-00001-of-00002.gguf",
        "big-Q4_K_M-00002-of-00002.gguf",
    ]
    assert {path.parent for path in progress.paths} == {models / "acme" / "Tiny-GGUF"}


def test_what_the_hubs_own_cache_holds_is_not_fetched(repository, fetched, model_bytes, server, tmp_path):
    repository.add("tiny.gguf", model_bytes)
    cached = tmp_path / "cache" / "models--acme--Tiny-GGUF" / "snapshots" / REVISION / "tiny.gguf"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(model_bytes)
    progress = fetched(f"hf:{REPOSITORY}").progress
    assert progress.state is State.DONE and progress.paths == (cached,)
    assert server.requests("/cdn/tiny.gguf") == []


@pytest.mark.parametrize(
    ("free", "chosen"), [(60 * 10**9, "Q4_K_M"), (4 * 10**9, "Q2_K"), (10**9, "Q2_K"), (None, "Q4_K_M")]
)
def test_a_quantisation_is_chosen_by_what_fits(repository, free, chosen):
    for label, size in (("Q8_0", 9 * 10**9), ("Q4_K_M", 5 * 10**9), ("Q2_K", 3 * 10**9), ("F16", 16 * 10**9)):
        repository.add(f"big-{label}.gguf", b"GGUF", size=size)
    repository.add("mmproj-big-Q4_K_M.gguf", b"GGUF", size=10)
    made = plan(free=free)
    assert made.what == f"hf:{REPOSITORY}:{chosen}"
    assert "F16 16 GB" in made.notes[0]
    assert ("none fits" in made.notes[0]) == (free == 10**9)


def test_a_small_model_is_taken_with_eight_bits(repository):
    repository.add("small-Q4_K_M.gguf", b"GGUF", size=400 * 10**6)
    repository.add("small-Q8_0.gguf", b"GGUF", size=700 * 10**6)
    assert plan(free=10**10).what.endswith(":Q8_0")


def test_files_of_one_label_are_told_apart_by_name(repository):
    repository.add("one-Q4_0.gguf", b"GGUF")
    repository.add("two-Q4_0.gguf", b"GGUF")
    assert plan(f"hf:{REPOSITORY}:two-Q4_0.gguf").files[0].name == "two-Q4_0.gguf"
    with pytest.raises(FetchError, match=r"has no Q4_0; it has one-Q4_0.gguf, two-Q4_0.gguf"):
        plan(f"hf:{REPOSITORY}:Q4_0")


def test_licences_that_are_not_open_ask_for_consent(repository):
    repository.add("tiny.gguf", b"GGUF")
    repository.card(license="gemma")
    assert plan().licence.consent
    repository.card(license="other", license_name="acme-terms", license_link="https://acme.example/terms")
    licence = plan().licence
    assert (licence.name, licence.url, licence.consent) == ("acme-terms", "https://acme.example/terms", True)
    repository.card()
    assert (plan().licence.name, plan().licence.consent) == ("not stated", False)


def test_a_repository_that_asks_for_consent_refuses_its_files_and_says_where(repository, fetched, server):
    repository.add("tiny.gguf", b"GGUF")
    repository.about["gated"] = "manual"
    repository.publish()
    server.faults[f"/{REPOSITORY}/resolve/{REVISION}/tiny.gguf"] = [Fault(status=403)]
    fetch = fetched(f"hf:{REPOSITORY}")
    assert fetch.plan.licence.consent
    assert (
        f"agree to its licence at {server.url('/' + REPOSITORY)}, then set HF_TOKEN" in fetch.progress.error
    )


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "there is no repository .*acme/Tiny-GGUF, or it is private"),
        (404, {"X-Error-Code": "RepoNotFound"}, "there is no repository .*HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "agree to its licence at http://.*acme/Tiny-GGUF"),
        (403, {}, "refuses .*HF_TOKEN"),
        (429, {"Retry-After": "90"}, "asked too often .*in about 90 s"),
        (500, {}, "has a fault"),
    ],
)
def test_the_hubs_refusals_say_what_to_do(repository, server, status, headers, said):
    server.faults[f"/api/models/{REPOSITORY}"] = 9 * [Fault(status=status, headers=headers)]
    with pytest.raises(FetchError, match=said) as caught:
        plan()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["hf:tiny", "hf:a/b/c", "hf:", "hf:/x", "hf:a b/c"])
def test_what_is_no_repository(what):
    with pytest.raises(FetchError, match="hf:OWNER/REPO"):
        plan(what)


def test_a_repository_without_models_and_no_network(repository, monkeypatch):
    with pytest.raises(FetchError, match="holds no GGUF files"):
        plan()
    monkeypatch.setattr(hub, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(FetchError, match=r"127\.0\.0\.1 cannot be reached"):
        plan()
    monkeypatch.setattr(hub, "ENDPOINT", "http://no-such-host.invalid")
    with pytest.raises(FetchError, match=r"there is no host no-such-host\.invalid"):
        plan()
