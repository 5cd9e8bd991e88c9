"""The file format: what was written comes back, and nothing else ever does."""

from array import array
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.disk.fingerprint import Fingerprint
from engine.disk.segment import Refused, Segment, SegmentWriter

MINE = Fingerprint("float32", "torch float32", "16 [(2, 1, 8, 0)] []", "rope", "file")
SIZES = (96, 40)
SIZE = 4
PROPERTY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def tokens_of(count: int, shift: int = 0) -> "array[int]":
    return array("i", [(shift + 7 * i) % 1000 for i in range(count)])


def pages_of(number: int, mask: int) -> list[memoryview]:
    """Of every block other bytes."""
    return [
        memoryview(bytes((number * 31 + pool * 7 + i) % 256 for i in range(size)))
        for pool, size in enumerate(SIZES)
        if mask >> pool & 1
    ]


def write(folder: Path, masks: list[int], first: int = 0, name: str = "a.kv") -> Path:
    tokens = tokens_of((first + len(masks) + 2) * SIZE)
    writer = SegmentWriter(folder, MINE, SIZE, SIZES, tokens, first)
    for number, mask in enumerate(masks, first):
        writer.add(mask, pages_of(number, mask))
    return writer.finish(name)


def read(path: Path) -> list[list[bytes]]:
    """All blocks; raises what reading raises."""
    with Segment(path) as segment:
        blocks = []
        for index, mask in enumerate(segment.head.masks):
            pages = [bytearray(size) for pool, size in enumerate(SIZES) if mask >> pool & 1]
            segment.read(index, [memoryview(page) for page in pages])
            blocks.append([bytes(page) for page in pages])
        return blocks


@PROPERTY
@given(masks=st.lists(st.sampled_from([1, 3]), min_size=1, max_size=5), first=st.integers(0, 3))
def test_what_was_written_comes_back(tmp_path, masks, first):
    path = write(tmp_path, masks, first)
    with Segment(path) as segment:
        assert (segment.head.fingerprint, segment.head.first) == (MINE, first)
        assert segment.head.token_ids == tokens_of((first + len(masks)) * SIZE)
    expected = [[bytes(page) for page in pages_of(first + i, mask)] for i, mask in enumerate(masks)]
    assert read(path) == expected
    assert path.stat().st_mode & 0o777 == 0o600


@PROPERTY
@given(data=st.data())
def test_a_changed_bit_anywhere_is_refused(tmp_path, data):
    path = write(tmp_path, [3, 1, 3])
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(Refused):
        read(path)


@PROPERTY
@given(data=st.data())
def test_a_file_that_was_cut_off_or_grew_is_refused(tmp_path, data):
    path = write(tmp_path, [3, 1, 3])
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(Refused):
        read(path)
    path.write_bytes(content + data.draw(st.binary(min_size=1, max_size=9)))
    with pytest.raises(Refused):
        read(path)


@PROPERTY
@given(content=st.binary(max_size=300))
def test_any_other_file_is_refused(tmp_path, content):
    path = tmp_path / "other.kv"
    path.write_bytes(content)
    with pytest.raises(Refused):
        read(path)


@PROPERTY
@given(at=st.integers(0, 15), first=st.integers(0, 2))
def test_blocks_match_as_far_as_all_tokens_before_them_do(tmp_path, at, first):
    with Segment(write(tmp_path, [1, 1], first)) as segment:
        tokens = tokens_of(4 * SIZE)
        assert segment.head.matching(tokens) == min(2, 4 - first)
        tokens[at] += 1
        assert segment.head.matching(tokens) == max(0, min(first + 2, at // SIZE) - first)


def test_a_file_that_others_could_have_written_is_refused(tmp_path):
    path = write(tmp_path, [1])
    path.chmod(0o666)
    with pytest.raises(Refused, match="others"):
        read(path)


def test_what_is_not_finished_is_not_there(tmp_path):
    writer = SegmentWriter(tmp_path, MINE, SIZE, SIZES, tokens_of(SIZE), 0)
    writer.add(1, pages_of(0, 1))
    assert [path.suffix for path in tmp_path.iterdir()] == [""]
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_every_field_of_a_fingerprint_counts():
    others = [
        Fingerprint(*("x" if i == at else value for i, value in enumerate(MINE_FIELDS))) for at in range(5)
    ]
    others.append(Fingerprint(*MINE_FIELDS, layout=MINE.layout + 1))
    assert len({one.key for one in (MINE, *others)}) == 7
    assert len({MINE.difference(other) for other in others}) == 6


MINE_FIELDS = (MINE.kv_type, MINE.kernels, MINE.shapes, MINE.rope, MINE.model)
