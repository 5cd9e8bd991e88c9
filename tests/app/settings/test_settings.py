import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.settings.file import Settings, SettingsError, load_settings, parse_size, save_setting
from app.settings.reference import commented
from app.settings.servers.endpoints import Endpoint
from app.settings.toml_text import edit_toml, toml_value

APP = Path(__file__).parents[3] / "app"


def write(tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("section", ["general", "engine", "models"])
def test_every_setting_is_used_somewhere(section):
    code = "\n".join(path.read_text() for path in APP.rglob("*.py"))
    for option in fields(getattr(Settings(), section)):
        uses = len(re.findall(rf"\.{option.name}\b", code))
        assert uses, f"{section}.{option.name} changes nothing"


def test_missing_file_gives_defaults(tmp_path):
    assert load_settings(tmp_path / "none.toml") == (Settings(), [])


def test_values_are_read(tmp_path):
    path = write(
        tmp_path,
        '[general]\ntheme = "linen"\nrestore_tabs = false\n[engine]\nkv_budget = "2 GiB"\ntick_factor = 3\n'
        'speculation = "off"\n'
        '[sampling]\ntemperature = 0\nseed = 7\n[models]\nfolders = ["/a", "/b"]\n'
        '[keys]\nnew_tab = "ctrl+n"\n',
    )
    settings, warnings = load_settings(path)
    assert warnings == []
    assert settings.general.theme == "linen"
    assert settings.general.restore_tabs is False
    assert settings.engine.kv_budget_bytes == 2 << 30
    assert settings.engine.tick_factor == 3.0
    assert load_settings(write(tmp_path, "[engine]\ntick_factor = 0\n")) == (Settings(), [])
    assert settings.engine.speculation == "off"
    assert settings.sampling.params().temperature == 0.0
    assert settings.sampling.params().seed == 7
    assert settings.models.folders == ("/a", "/b")
    assert settings.keys == {"new_tab": "ctrl+n"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[general]\nthem = "x"', ["general.them", "did you mean general.theme?"]),
        ("[genral]\ntheme = 1", ["genral", "did you mean general?"]),
        ("[general]\ntheme = 1", ["general.theme", "text in quotes", "a whole number", "'ink'"]),
        ('[general]\npanel = "maybe"', ["general.panel", "auto, on, off", "maybe"]),
        ('[general]\nrestore_tabs = "yes"', ["general.restore_tabs", "true or false", "default true"]),
        ("[sampling]\ntop_p = 1.5", ["sampling.top_p", "between 0.0 and 1.0", "1.5"]),
        ("[sampling]\ntop_k = 1.5", ["sampling.top_k", "a whole number"]),
        ("[sampling]\ntop_k = true", ["sampling.top_k", "a whole number", "true or false"]),
        ("[sampling]\ntemperature = nan", ["sampling.temperature", "between"]),
        ('[engine]\nkv_budget = "lots"', ["engine.kv_budget", "2 GiB", "lots"]),
        ('[models]\nfolders = "/a"', ["models.folders", "a list of strings", "text in quotes"]),
        ("[models]\nfolders = [1]", ["models.folders", "a list of strings"]),
        ('[models]\nleave_out = ["jam"]', ["models.leave_out", "some of hugging-face", "jam"]),
        ("[keys]\nquit_app = 3", ["keys.quit_app", "keys in quotes"]),
        ("general = 3", ["general", "section [general]"]),
        ("[general", ["not valid TOML", "default settings"]),
    ],
)
def test_bad_entries_are_named_and_replaced_by_defaults(tmp_path, text, parts):
    path = write(tmp_path, text)
    settings, warnings = load_settings(path)
    assert settings == Settings()
    assert len(warnings) == 1
    for part in [str(path), *parts]:
        assert part in warnings[0]


def test_one_bad_key_leaves_the_others(tmp_path):
    settings, warnings = load_settings(write(tmp_path, '[general]\ntheme = "moss"\npanel = 5\n'))
    assert settings.general.theme == "moss"
    assert settings.general.panel == "auto"
    assert len(warnings) == 1


def test_unreadable_file_warns(tmp_path):
    settings, warnings = load_settings(tmp_path)
    assert settings == Settings()
    assert "cannot be read" in warnings[0]


def test_a_key_that_is_like_no_other_is_not_guessed_at(tmp_path):
    _, [warning] = load_settings(write(tmp_path, "[general]\ncolour = 1"))
    assert warning.endswith("unknown key general.colour")


def test_save_writes_one_setting_and_keeps_comments_and_unknown_keys(tmp_path):
    text = (
        '# mine\n[general]\npanel = "on" # nice\nfuture = 1\n\n'
        '[models]\nfolders = [\n  "/a", # first\n]\n\n[keys]\nnew_tab = "ctrl+n"\n'
    )
    path = write(tmp_path, text)
    save_setting(path, "general", "theme", "frost")
    assert path.read_text() == text.replace("future = 1\n", 'future = 1\ntheme = "frost"\n')
    save_setting(path, "models", "folders", ("/a", '/b "q"\n'))
    settings, _ = load_settings(path)
    assert settings.models.folders == ("/a", '/b "q"\n') and settings.general.theme == "frost"
    assert list(tmp_path.iterdir()) == [path], "the temporary file must be gone"


def test_save_leaves_a_setting_that_is_so_already(tmp_path):
    path = write(tmp_path, '[general]\ntheme = "frost" # nice\n')
    save_setting(path, "general", "theme", "frost")
    assert path.read_text() == '[general]\ntheme = "frost" # nice\n'


def test_a_new_file_explains_every_setting_and_reads_back(tmp_path):
    path = tmp_path / "new" / "settings.toml"
    save_setting(path, "sampling", "system_prompt", 'a "b"\nc')
    written = tomllib.loads(path.read_text())
    assert {name: section for name, section in written.items() if section} == {
        "sampling": {"system_prompt": 'a "b"\nc'}
    }
    changed = replace(Settings(), sampling=replace(Settings().sampling, system_prompt='a "b"\nc'))
    assert load_settings(path) == (changed, [])
    everything = re.sub(r"(?m)^#(?=\w+ =)", "", commented(Settings()))
    path.write_text(everything)
    cluster = Endpoint("cluster", "http://127.0.0.1:8000/v1", "CLUSTER_KEY", ("qwen3-32b",))
    whole = replace(Settings(), keys={"new_tab": "ctrl+n"}, endpoints={"cluster": cluster})
    assert load_settings(path) == (whole, [])
    for name, section in tomllib.loads(everything).items():
        assert name in ("keys", "endpoints") or set(section) == {
            f.name for f in fields(getattr(Settings(), name)) if f.metadata
        }


def test_the_readme_has_the_settings_as_they_are():
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert f"```toml\n{commented(Settings())}```" in readme


def test_save_refuses_a_broken_file(tmp_path):
    path = write(tmp_path, "[general\n")
    with pytest.raises(SettingsError, match=r"settings\.toml: not saved"):
        save_setting(path, "general", "theme", "moss")
    assert path.read_text() == "[general\n"


@pytest.mark.parametrize(
    ("text", "wanted"), [('"auto"', "auto"), ('"never"', "never"), ("12", 12), ('"0"', 0)]
)
def test_layers_of_the_processor(tmp_path, text, wanted):
    settings, warnings = load_settings(write(tmp_path, f"[engine]\nhost_layers = {text}\n"))
    assert (settings.engine.host_layers_wanted, warnings) == (wanted, [])


@pytest.mark.parametrize("text", ['"some"', "-1", "1.5", "true", '"99999"'])
def test_bad_numbers_of_layers_are_named(tmp_path, text):
    settings, (warning,) = load_settings(write(tmp_path, f"[engine]\nhost_layers = {text}\n"))
    assert settings.engine.host_layers_wanted == "auto"
    assert "engine.host_layers must be auto, never or a number of layers" in warning


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2 GiB", 2 << 30), ("512MB", 512_000_000), ("1.5 kib", 1536)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_string_survives_toml(text):
    assert tomllib.loads(f"a = {toml_value(text)}") == {"a": text}


values = st.one_of(st.booleans(), st.integers(-99, 99), st.text("ab[]\"'#=\n", max_size=8))


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", "z z"]), values), max_size=20))
def test_edits_read_back(edits):
    text, expected = "", {}
    for section, key, value in edits:
        text = edit_toml(text, section, key, value)
        expected.setdefault(section, {})[key] = value
    assert tomllib.loads(text) == expected


def test_servers_of_tools_are_sections_of_their_own(tmp_path):
    path = write(
        tmp_path,
        '[tools.files]\ncommand = "npx"\nargs = ["-y", "files"]\nenv = { TOKEN = "t" }\ntimeout = 5\n'
        'allow = ["read"]\nhidden = true\non = true\n',
    )
    settings, warnings = load_settings(path)
    server = settings.tools["files"]
    assert warnings == [] and (server.command, server.args, server.timeout) == ("npx", ("-y", "files"), 5.0)
    assert server.env == (("TOKEN", "t"),) and server.hidden and server.on
    assert server.allows("read") and not server.allows("write")
    assert server.most_bytes == 32 << 10


@pytest.mark.parametrize(
    ("text", "warning", "names"),
    [
        (
            "[tools.a]\nargs = []",
            "tools.a.command must name the program to start; the server is left out",
            [],
        ),
        (
            "[tools.a]\ncommand = 3",
            "tools.a.command must be text in quotes, not a whole number; ",
            [],
        ),
        ('[tools.a]\ncommand = "x"\nargs = "b"', "tools.a.args must be a list of strings", []),
        ('[tools.a]\ncommand = "x"\nenv = { A = 1 }', "tools.a.env must be a table of texts", []),
        ('[tools.a]\ncommand = "x"\ntimeout = 0', "tools.a.timeout must be between 0.1 and", ["a"]),
        (
            '[tools.a]\ncommand = "x"\nhidden = 1',
            "true or false, not a whole number; the default fals",
            ["a"],
        ),
        (
            '[tools.a]\ncommand = "x"\nalow = []',
            "key tools.a.alow; did you mean tools.a.allow?",
            ["a"],
        ),
        ('[tools."a b"]\ncommand = "x"', "tools.a b: a server's name is 1 to 32 letters", []),
        ('[tools]\ncommand = "x"', "tools.command must be a section [tools.command]", []),
    ],
)
def test_what_is_wrong_with_a_server_is_named(tmp_path, text, warning, names):
    path = write(tmp_path, text)
    settings, warnings = load_settings(path)
    assert len(warnings) == 1 and warnings[0].startswith(f"{path}: ") and warning in warnings[0]
    assert list(settings.tools) == names


def test_another_setting_is_saved_beside_servers_of_tools(tmp_path):
    path = write(tmp_path, '[tools.files]\ncommand = "npx"  # mine\n')
    save_setting(path, "general", "theme", "frost")
    assert '[tools.files]\ncommand = "npx"  # mine\n' in path.read_text()
    assert load_settings(path)[0].tools["files"].command == "npx"
