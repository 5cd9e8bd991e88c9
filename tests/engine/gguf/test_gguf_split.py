import shutil

import pytest

from engine.api.errors import ModelFileError
from engine.gguf.file import open_gguf
from engine.gguf.split import parse_part_name
from tests.support.gguf_bytes import entry, gguf, tensor


def write_parts(folder, count=3, *, numbers=None, total=None, counts=None):
    """A model of `count` parts with one tensor each; returns the paths."""
    paths = []
    for index in range(count):
        entries = [
            entry("split.no", 2, (numbers or list(range(count)))[index]),
            entry("split.count", 2, (counts or [count] * count)[index]),
            entry("split.tensors.count", 5, total or count),
        ]
        if index == 0:
            entries.append(entry("general.architecture", 8, "llama"))
        path = folder / f"model-{index + 1:05d}-of-{count:05d}.gguf"
        path.write_bytes(gguf(entries, [tensor(f"t{index}", [8])], bytes([index]) * 32))
        paths.append(path)
    return paths


def test_any_part_opens_the_whole_model(tmp_path):
    paths = write_parts(tmp_path)
    for path in paths:
        file = open_gguf(path)
        assert file.path == paths[0]
        assert file.architecture == "llama"
        assert list(file.tensors) == ["t0", "t1", "t2"]
        for index in range(3):
            assert file.tensors[f"t{index}"].part == index
            assert file.tensor_bytes(f"t{index}").tolist() == [index] * 32
        assert file.size_bytes == sum(part.stat().st_size for part in paths)


def test_missing_part_is_named(tmp_path):
    paths = write_parts(tmp_path)
    paths[1].unlink()
    for path in (paths[0], paths[2]):
        with pytest.raises(ModelFileError, match=r"model-00002-of-00003\.gguf: part 2 of 3 is missing"):
            open_gguf(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"numbers": [0, 2, 1]}, "split.no is 2"),
        ({"total": 7}, "split.tensors.count is 7"),
        ({"counts": [3, 4, 3]}, "split.count is 4"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path, options, words):
    path = write_parts(tmp_path, **options)[0]
    with pytest.raises(ModelFileError, match=words):
        open_gguf(path)


def test_same_tensor_in_two_parts(tmp_path):
    paths = write_parts(tmp_path)
    content = paths[2].read_bytes().replace(b"t2", b"t1")
    paths[2].write_bytes(content)
    with pytest.raises(ModelFileError, match="'t1' also occurs in part 2"):
        open_gguf(paths[0])


def test_renamed_part_is_refused(tmp_path):
    path = write_parts(tmp_path)[0]
    renamed = shutil.move(path, tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="original names"):
        open_gguf(renamed)


def test_part_names():
    from pathlib import Path

    name = parse_part_name(Path("a/b-00002-of-00010.gguf"))
    assert name is not None
    assert (name.stem, name.number, name.count) == ("b", 2, 10)
    assert name.sibling(10) == Path("a/b-00010-of-00010.gguf")
    for other in ("b.gguf", "b-00003-of-00002.gguf", "b-00000-of-00002.gguf", "b-1-of-2.gguf"):
        assert parse_part_name(Path(other)) is None
