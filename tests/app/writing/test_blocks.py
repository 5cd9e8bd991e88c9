"""Named texts in messages are found again as they were put in."""

from app.writing.blocks import Block, blocks_in, fenced, gathered


def test_files_and_chats_are_found_between_other_text():
    one, two = fenced("file", "a.py", "print('```')\n", "py"), fenced("chat", "On terns", "User: hello")
    text = f"see {'x'}\n\n{one}\n\nand {'y'}\n{two}\nend"
    found = blocks_in(text)
    assert [(block.kind, block.name) for block in found] == [("file", "a.py"), ("chat", "On terns")]
    assert [text[block.start : block.end] for block in found] == [one, two]
    assert one.startswith("File a.py:\n````py\n")


def test_a_folder_is_one_with_its_files():
    files = [fenced("file", f"src/{name}", name) for name in ("a", "b")]
    folder, alone = gathered("src", files), fenced("file", "c", "c")
    text = f"{folder}\n\n{alone}"
    assert blocks_in(text) == [
        Block(0, len(folder), "folder", "src"),
        Block(len(folder) + 2, len(text), "file", "c"),
    ]


def test_a_folder_that_lacks_files_is_no_folder():
    text = gathered("src", [fenced("file", "a", "a")]).replace("1 file", "2 files")
    assert [block.kind for block in blocks_in(text)] == ["file"]


def test_fences_that_nothing_closes_are_text():
    assert blocks_in("File a:\n```py\n" * 20_000) == []
    assert blocks_in("File a:\n```\nx\n````\n") == []


def test_a_name_of_several_lines_is_one_line():
    assert fenced("chat", "a\nb ", "x").startswith("Chat a b:\n")
