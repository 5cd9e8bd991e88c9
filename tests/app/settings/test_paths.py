import stat

from app.settings.paths import locations, private_directory


def test_home_variable_replaces_every_location(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path / "home"))
    places = locations()
    for path in (
        places.config,
        places.data,
        places.models,
        places.themes,
        places.logs,
        places.cache,
        places.state,
    ):
        assert path.is_relative_to(tmp_path / "home")
    assert not (tmp_path / "home").exists(), "asking for the locations must create nothing"


def test_platform_locations_honour_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("TUI_CHAT_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    places = locations()
    assert places.settings_file == tmp_path / "config" / "tui-chat" / "settings.toml"
    assert places.history_file == tmp_path / "data" / "tui-chat" / "history.db"


def test_private_directory_is_for_its_owner_only(tmp_path):
    made = private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert private_directory(made) == made
