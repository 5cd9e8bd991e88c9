"""Settings are written in their order beside the user interface, and to the end."""

import threading

from app.settings import writer as writer_module
from app.settings.file import load_settings
from app.settings.writer import SettingsWriter


def test_saving_does_not_wait_and_keeps_the_order(tmp_path, monkeypatch):
    path = tmp_path / "settings.toml"
    gate = threading.Event()
    real = writer_module.save_setting

    def slow(*args):
        gate.wait()
        real(*args)

    monkeypatch.setattr(writer_module, "save_setting", slow)
    writer = SettingsWriter(path, print)
    for name in ("moss", "linen", "ember"):
        writer.save("general", "theme", name)
    assert not path.exists()
    gate.set()
    writer.close(30)
    assert load_settings(path)[0].general.theme == "ember"


def test_what_cannot_be_saved_is_said(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("not = [toml")
    said = []
    writer = SettingsWriter(path, said.append)
    writer.save("general", "theme", "moss")
    writer.close(30)
    assert "correct the file first" in said[0]
