"""Endpoints in the settings: what cannot be used is named, and a key that was put there is not repeated."""

import pytest

from app.models.endpoint_keys import absolute, endpoint_key, endpoint_model
from app.settings.file import load_settings
from app.settings.servers.endpoints import GIVEN_KEY, Endpoint, checked_url, given_endpoint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoints = 1", "endpoints must be a section [endpoints]"),
        ("[endpoints]\na = 1", "endpoints.a must be a section [endpoints.a], not a whole number"),
        ('[endpoints."a b"]\nurl = "http://x"', "endpoints.a b: a name has letters, digits"),
        ("[endpoints.a]", "endpoints.a.url must be an address such as"),
        (
            '[endpoints.a]\nurl = "x:8000"',
            "endpoints.a.url must be an address such as http://127.0.0.1:8000/v1",
        ),
        ('[endpoints.a]\nurl = "http://[::1"', "endpoints.a.url must be an address such as"),
        ('[endpoints.a]\nurl = "http://x/?key=1"', "without anything behind ? or #"),
        ('[endpoints.a]\nurl = "http://x"\nmodels = "m"', "endpoints.a.models must be a list of names"),
        ('[endpoints.a]\nurl = "http://x"\napi_key_keyring = 1', "endpoints.a.api_key_keyring must be the"),
        ('[endpoints.a]\nurl = "http://x"\napi_key_keyring = "a/"', "such as tui-chat/cluster"),
        (
            '[endpoints.a]\nurl = "http://x"\napi_key_keyring = "a/b"\napi_key_env = "K"',
            "endpoints.a.api_key_keyring cannot stand beside api_key_env",
        ),
        (
            '[endpoints.a]\nurl = "http://x"\nkey = "m"',
            "endpoints.a: unknown key key; there are url",
        ),
    ],
)
def test_what_is_wrong_names_its_field(tmp_path, text, said):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    settings, [warning] = load_settings(path)
    assert said in warning and warning.startswith(str(path))
    assert set(settings.endpoints) == ({"a"} if "unknown key" in said else set())


@pytest.mark.parametrize(
    "field",
    [
        'api_key_env = "sk-12-secret"',
        'api_key_keyring = "sk-12-secret"',
        'url = "http://me:sk-12-secret@x/v1"',
    ],
)
def test_a_key_in_the_file_is_refused_and_not_repeated(tmp_path, field):
    path = tmp_path / "settings.toml"
    path.write_text(f"[endpoints.a]\nmodels = []\n{field}\n" + ('url = "http://x"' if "api" in field else ""))
    settings, [warning] = load_settings(path)
    assert "secret" not in warning and "key" in warning and not settings.endpoints


def test_an_entry_of_the_keyring_is_kept_as_it_is(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('[endpoints.a]\nurl = "http://x"\napi_key_keyring = "https://x/v1/me"\n')
    settings, warnings = load_settings(path)
    assert not warnings and settings.endpoints["a"].api_key_keyring == "https://x/v1/me"


def test_an_address_without_a_path_means_the_usual_one():
    assert checked_url("http://127.0.0.1:8000") == "http://127.0.0.1:8000/v1"
    assert checked_url(" https://x.org/api/v1/ ") == "https://x.org/api/v1"


def test_an_address_of_the_command_line_is_one_of_the_settings_or_its_own():
    known = Endpoint("cluster", "http://127.0.0.1:8000/v1", "CLUSTER_KEY")
    assert given_endpoint("http://127.0.0.1:8000", {"cluster": known}) is known
    other = given_endpoint("http://127.0.0.1:9000", {"cluster": known})
    assert (other.name, other.api_key_env, other.optional_key) == ("127.0.0.1:9000", GIVEN_KEY, True)


@pytest.mark.parametrize(
    "model", ["", "qwen3", "meta-llama/Llama-3.1", "/models//a b.gguf", "ü%2F:", "\ud800"]
)
def test_a_key_in_a_files_place_keeps_names_as_they_are(model):
    key = endpoint_key("127.0.0.1:8000", model)
    expected = model.encode("utf-8", "replace").decode()
    assert endpoint_model(str(key)) == endpoint_model(key) == ("127.0.0.1:8000", expected)
    assert absolute(key) == key
    assert endpoint_model("/models/endpoint:x/y.gguf") is None and endpoint_model("m.gguf") is None
