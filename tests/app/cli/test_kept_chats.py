"""Commands on kept chats: export, import, and going on with one."""

import json
from dataclasses import replace

import pytest

from app.chat.marks import Marks
from app.cli import program
from app.history.store import HistoryStore
from app.settings.paths import locations
from app.window import app as window
from engine import ThinkingSupport
from tests.app.cli.test_ask import FakeModel, run  # noqa: F401
from tests.app.history.talks import same, talk


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Puts chats into the history; returns them by title."""
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path))

    def put(*titles, marks=None):
        history = HistoryStore(locations().history_file)
        chats = {}
        for age, title in enumerate(titles):
            chats[title] = chat = talk(title)
            chat.updated -= age
            chat.model_path = None
            history.save(chat)
            if marks:
                history.mark(chat.id, marks)
        assert history.close()
        return chats

    return put


def stored(conversation_id):
    history = HistoryStore(locations().history_file)
    try:
        return history.load(conversation_id)
    finally:
        history.close()


def tui_chat(capsys, *arguments):
    code = program.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_chat_goes_to_stdout_or_into_a_file_that_is_not_there(keep, capsys, tmp_path):
    keep("Arctic terns", "Cod")
    code, out, _ = tui_chat(capsys, "export", "tern")
    assert code == 0 and out.startswith("# Arctic terns\n")
    target = tmp_path / "x.html"
    code, out, err = tui_chat(capsys, "export", "tern", "-o", target)
    assert (code, out) == (0, "") and str(target) in err and "<h1>Arctic terns" in target.read_text()
    assert tui_chat(capsys, "export", "tern", "-o", target)[0] == 1
    assert tui_chat(capsys, "export", "tern", "-o", target, "--force")[0] == 0
    assert tui_chat(capsys, "export")[0] == tui_chat(capsys, "export", "x", "--all")[0] == 2


def test_all_chats_go_out_and_come_in_elsewhere_once(keep, capsys, tmp_path, monkeypatch):
    chats = keep("Terns", "Cod", marks=Marks(archived=True, tags=("sea",)))
    code, _, err = tui_chat(capsys, "export", "--all")
    [path] = locations().exports.iterdir()
    assert code == 0 and f"2 chats written to {path}" in err
    assert tui_chat(capsys, "export", "--all", "--format", "md", "-o", tmp_path / "md")[0] == 0
    assert len(list((tmp_path / "md").glob("*.md"))) == 2
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path / "other"))
    code, _, err = tui_chat(capsys, "import", path, "--dry-run")
    assert code == 0 and "would come in: 2 new" in err and not locations().history_file.exists()
    assert (
        "taken in: 2 new, 0 with new messages, 0 here already; 0 refused"
        in tui_chat(capsys, "import", path)[2]
    )
    assert "0 new, 0 with new messages, 2 here already" in tui_chat(capsys, "import", path)[2]
    same(stored(chats["Terns"].id), chats["Terns"])
    history = HistoryStore(locations().history_file)
    assert [chat.marks for chat in history.search("#archived")] == [Marks(archived=True, tags=("sea",))] * 2
    history.close()


def test_a_chat_that_went_on_elsewhere_gets_its_new_messages_and_keeps_its_own(keep, capsys, tmp_path):
    chats = keep("Terns")
    chat = chats["Terns"]
    path = tmp_path / "one.json"
    tui_chat(capsys, "export", "terns", "-o", path)
    record = json.loads(path.read_text())
    [entry] = record["chats"]
    fresh = entry["messages"][-1] | {"id": "n1", "parent": chat.leaf, "role": "user", "text": "and a gull?"}
    entry["messages"].append(fresh)
    entry["messages"][1]["text"] = "changed"
    entry["leaf"] = "n1"
    path.write_text(json.dumps(record))
    assert "1 with new messages (1 messages)" in tui_chat(capsys, "import", path)[2]
    found = stored(chat.id)
    assert [node.text for node in found.path()] == ["what is a tern", "a sea bird", "and a gull?"]


def test_a_file_cannot_change_messages_of_another_chat(keep, capsys, tmp_path):
    chats = keep("Terns")
    other = talk("Evil", "x" * 99, "y" * 99)
    mine = list(chats["Terns"].nodes.values())
    other.nodes = {
        old.id: replace(new, id=old.id, parent=old.parent)
        for old, new in zip(mine, other.nodes.values(), strict=True)
    }
    other.leaf = mine[-1].id
    from app.exchange.formats import json_text
    from app.exchange.kept import KeptChat

    path = tmp_path / "evil.json"
    path.write_text(json_text([KeptChat(other)]))
    assert "1 new" in tui_chat(capsys, "import", path)[2]
    assert "1 here already" in tui_chat(capsys, "import", path)[2]
    same(stored(chats["Terns"].id), chats["Terns"])
    assert [node.text for node in stored(other.id).path()] == ["x" * 99, "y" * 99]


def test_what_cannot_be_read_is_said_in_a_line_and_the_rest_comes_in(keep, capsys, tmp_path):
    keep("Terns")
    path = tmp_path / "two.json"
    tui_chat(capsys, "export", "--all", "-o", path)
    record = json.loads(path.read_text())
    record["chats"].append({"id": "bad", "title": "Bad\none", "messages": [{"id": "m"}]})
    path.write_text(json.dumps(record))
    code, _, err = tui_chat(capsys, "import", path)
    assert code == 1 and "chat 2 (“Bad one”): messages[0]: role is none of" in err and "1 refused" in err
    assert len(err.splitlines()) == 2
    path.write_text("{")
    code, _, err = tui_chat(capsys, "import", path)
    assert code == 1 and "it is no JSON" in err and len(err.splitlines()) == 1
    assert tui_chat(capsys, "import", tmp_path / "none.json")[0] == 1


def test_a_word_means_one_chat_or_says_which(keep, capsys):
    keep("Arctic terns", "Terns", "Common terns", "Cod")
    assert tui_chat(capsys, "export", "terns")[1].startswith("# Terns\n")
    code, _, err = tui_chat(capsys, "export", "tern")
    assert code == 1 and "“tern” means 3 chats: “Arctic terns” (" in err
    assert tui_chat(capsys, "export", "arct trns")[1].startswith("# Arctic terns\n")
    assert "no chat has “whale”" in tui_chat(capsys, "export", "whale")[2]


def test_commands_on_chats_need_a_history(keep, capsys, run):  # noqa: F811
    for command in (["export", "x"], ["export", "--all"]):
        code, _, err = tui_chat(capsys, *command)
        assert code == 1 and "no chat is kept yet" in err
    code, _, err = run(FakeModel(["x"]), "--continue", "q")
    assert code == 1 and "no chat is kept yet" in err
    assert not locations().history_file.exists()


def test_ask_goes_on_with_the_last_chat_and_keeps_it(keep, run):  # noqa: F811
    chat = keep("Terns", "Older")["Terns"]
    model = FakeModel(["a ", "gull"])
    model.template.thinking_support = ThinkingSupport(efforts=("high",), has_thoughts=True)
    code, out, err = run(model, "--continue", "and a gull?")
    assert (code, out, err) == (0, "a gull\n", "")
    assert [message.content for message in model.template.messages] == [
        "S\n\nSummary of the conversation so far:\nwe spoke of gulls",
        "what is a tern",
        "a sea bird",
        "and a gull?",
    ]
    assert (model.request.sampling.temperature, model.request.max_tokens) == (0.3, 9)
    found = stored(chat.id)
    assert [node.text for node in found.path()][2:] == ["and a gull?", "a gull"]
    assert found.path()[-1].stats is not None and found.path()[-1].token_ids == [0, 1]
    assert run(FakeModel(["x"]), "--chat", "older", "q")[0] == 0
    assert run(FakeModel(["plain"]), "not kept")[0] == 0
    assert len(stored(chat.id).nodes) == 4


def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came(keep, run):  # noqa: F811
    chat = keep("Terns")["Terns"]
    code, *_ = run(FakeModel(["half ", KeyboardInterrupt()]), "--continue", "go on")
    assert code == program.INTERRUPTED
    answer = stored(chat.id).path()[-1]
    assert (answer.text, str(answer.status)) == ("half ", "stopped")


def test_a_chat_that_a_window_shows_is_not_asked_in(keep, run):  # noqa: F811
    chat = keep("Terns")["Terns"]
    shown = HistoryStore(locations().history_file)
    shown.save_tabs([chat.id], chat.id)
    assert shown.flush()
    code, _, err = run(FakeModel(["x"]), "--continue", "q")
    assert code == 1 and "“Terns” is open in a window" in err
    shown.close()
    assert run(FakeModel(["x"]), "--continue", "q")[0] == 0


def test_the_app_is_started_with_the_chat_that_a_word_means(keep, capsys, monkeypatch):
    chat = keep("Arctic terns", "Cod")["Arctic terns"]
    started = []
    monkeypatch.setattr(program, "_is_terminal", lambda stream: True)
    monkeypatch.setattr(window, "run_app", lambda settings, **options: started.append(options["chat"]) or 0)
    assert tui_chat(capsys, "--chat", "tern")[0] == 0
    assert started == [chat.id]
    code, _, err = tui_chat(capsys, "--chat", "whale")
    assert code == 1 and "no chat has “whale”" in err
