"""Showing a file in its folder, where there is a desktop."""

import pytest

from app.terminal.reveal import reveal, reveal_command


@pytest.mark.parametrize(
    ("environ", "platform", "command"),
    [
        ({"DISPLAY": ":0"}, "linux", ["xdg-open", "/m"]),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", ["xdg-open", "/m"]),
        ({}, "linux", None),
        ({}, "darwin", ["open", "-R", "/m/a.gguf"]),
        ({"DISPLAY": ":0", "SSH_TTY": "/dev/pts/1"}, "linux", None),
        ({"SSH_CONNECTION": "1 2"}, "darwin", None),
    ],
)
def test_what_opens_a_folder(tmp_path, environ, platform, command):
    path = type(tmp_path)("/m/a.gguf")
    assert reveal_command(path, environ, platform) == command


@pytest.mark.parametrize(("code", "opened"), [(0, True), (3, False)])
def test_the_opener_is_run_and_believed(tmp_path, monkeypatch, code, opened):
    monkeypatch.setattr("sys.platform", "linux")
    opener = tmp_path / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/asked"\nexit {code}\n')
    opener.chmod(0o755)
    environ = {"DISPLAY": ":0", "PATH": str(tmp_path)}
    assert reveal(tmp_path / "models" / "a.gguf", environ) is opened
    assert (tmp_path / "asked").read_text().strip() == str(tmp_path / "models")


def test_without_an_opener_nothing_is_shown(tmp_path):
    assert not reveal(tmp_path / "a.gguf", {"DISPLAY": ":0", "PATH": str(tmp_path)})
