"""The library of prompts."""

from app.writing.prompts import KeptPrompt, read_prompts


def test_a_folder_that_is_not_there_holds_none(tmp_path):
    assert read_prompts(tmp_path / "none") == ([], [])


def test_the_name_is_the_files_and_the_first_line_may_describe_it(tmp_path):
    (tmp_path / "code review.md").write_text("# Look for faults\nReview {{code}}.\n")
    (tmp_path / "plain.md").write_text("Just this.\n## And this")
    prompts, problems = read_prompts(tmp_path)
    assert problems == []
    assert prompts == [
        KeptPrompt("code-review", "Look for faults", "Review {{code}}."),
        KeptPrompt("plain", "", "Just this.\n## And this"),
    ]


def test_files_that_are_no_prompts_are_named_and_the_others_are_there(tmp_path):
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe\xfd")
    (tmp_path / "empty.md").write_text("# only a description\n")
    (tmp_path / "help.md").write_text("Help me.")
    (tmp_path / "a+b.md").write_text("x")
    (tmp_path / "huge.md").write_text("x" * 200_000)
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "good.md").write_text("Good.")
    prompts, problems = read_prompts(tmp_path, {"help"})
    assert [prompt.name for prompt in prompts] == ["good"]
    assert sorted(problem.removeprefix(f"{tmp_path}/") for problem in problems) == [
        "a+b.md: a prompt's name has only letters, digits, - and _; rename the file",
        "bad.md: it is not text in UTF-8",
        "empty.md: it holds no prompt",
        "folder.md: it is not a file",
        "help.md: /help is a command of the app; give the file another name",
        "huge.md: it is larger than 100,000 bytes",
    ]


def test_what_stands_behind_its_name_goes_into_the_first_place():
    prompt = KeptPrompt("p", "", "To {{language}}: {{ selection }}")
    assert prompt.filled("", "") == prompt.text
    assert prompt.filled(r"a\1b", "") == r"To {{language}}: a\1b"
    assert prompt.filled("", "Dutch") == "To Dutch: {{ selection }}"
    assert KeptPrompt("p", "", "Shorten this:").filled("", "a text") == "Shorten this:\n\na text"
