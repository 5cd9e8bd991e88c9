"""What the program tells of itself: completions for shells and the manual page, made of the parser."""

import shutil
import subprocess

import pytest

from app.cli.about.completions import SHELLS, script
from app.cli.about.man import page
from app.cli.about.shape import commands_of
from app.cli.program import COMMANDS, build_parser, main
from app.settings.actions import ACTIONS


@pytest.fixture(scope="module")
def parser():
    return build_parser(tuple(COMMANDS))


def completed(tmp_path, parser, *words):
    """What bash completes behind some words, the last of them begun."""
    (tmp_path / "script").write_text(script("bash", commands_of(parser)))
    told = " ".join(f"'{word}'" for word in ("tui-chat", *words))
    ask = f'. ./script; COMP_WORDS=({told}); COMP_CWORD={len(words)}; _tui_chat; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_choices_and_files(tmp_path, parser):
    (tmp_path / "tern.gguf").touch()
    assert completed(tmp_path, parser, "ex") == ["export"]
    assert set(COMMANDS) <= set(completed(tmp_path, parser, ""))
    assert completed(tmp_path, parser, "ask", "--temp") == ["--temperature"]
    assert completed(tmp_path, parser, "export", "--format", "") == ["md", "json", "html"]
    assert completed(tmp_path, parser, "completions", "f") == ["fish"]
    assert completed(tmp_path, parser, "--model", "te") == ["tern.gguf"]
    assert completed(tmp_path, parser, "ask", "-m", "te") == ["tern.gguf"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_in_the_script_and_the_page(tmp_path, parser, shell):
    text = script(shell, commands_of(parser))
    told = page(parser, "1.0").replace("\\-", "-")
    for command in commands_of(parser):
        assert (command.name in text and f".SS {command.name}" in told) or not command.name
        for option in command.options:
            for name in option.names:
                assert (name.lstrip("-") if shell == "fish" else name) in text
                assert f"\\fB{name}\\fR" in told
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True, timeout=60)


def test_the_page_is_roff_with_keys_settings_and_readmes_words(parser):
    told = page(parser, "1.0")
    assert told.startswith(".TH TUI-CHAT 1")
    for action in ACTIONS:
        assert action.title.replace("-", "\\-") in told
    for part in (".SH WRITING", ".SH KEEPING CHATS", "#theme = ", "exit codes:"):
        assert part in told
    macros = {line.split()[0] for line in told.splitlines() if line[:1] in (".", "'")}
    assert macros <= {".TH", ".SH", ".SS", ".TP", ".PP", ".IP", ".nf", ".fi", ".B"}
    assert "](" not in told.partition(".SH WRITING")[2].partition(".SH EXAMPLES")[0]


@pytest.mark.parametrize("words", [["completions", "tcsh"], ["completions"]])
def test_an_unknown_shell_is_wrong_usage(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2 and "tui-chat" in capsys.readouterr().err


def test_the_commands_print_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path))
    assert main(["completions", "zsh"]) == 0
    assert "_tui_chat" in capsys.readouterr().out
    assert main(["man"]) == 0
    assert ".SH OPTIONS" in capsys.readouterr().out
