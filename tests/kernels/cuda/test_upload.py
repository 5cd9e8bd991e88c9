"""Bytes arrive on the device as they were, whatever their number."""

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.cuda.upload import PIECE, SLOTS, Uploader
from kernels.quant.dequant import as_tensor


@pytest.fixture
def mapped(tmp_path: Path, full: bool):
    size = 2 * SLOTS * PIECE + 4321 if full else PIECE + 4321
    path = tmp_path / "weights.bin"
    path.write_bytes(np.random.default_rng(5).bytes(size))
    with path.open("rb") as file:
        yield np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def test_pieces_arrive_in_place(mapped: np.ndarray, device: str):
    whole = as_tensor(mapped)
    with Uploader(torch.device(device)) as uploader:
        for start, end in ((0, 1), (3, PIECE + 3), (17, len(mapped)), (PIECE - 1, PIECE + 1), (5, 5)):
            sent = uploader.upload(whole[start:end])
            assert sent.device.type == device and sent.dtype == torch.uint8
            assert torch.equal(sent.cpu(), whole[start:end])


def test_what_was_sent_is_read_in_order_while_more_travels(mapped: np.ndarray, device: str):
    whole = as_tensor(mapped)
    sums = []
    with Uploader(torch.device(device)) as uploader:
        for start in range(0, 4096 * 8, 4096):
            # Freed at once: its memory may be filled again only after the sum was taken.
            sums.append(uploader.upload(whole[start : start + PIECE]).sum(dtype=torch.int64))
    wanted = [whole[start : start + PIECE].sum(dtype=torch.int64) for start in range(0, 4096 * 8, 4096)]
    assert [int(total) for total in sums] == [int(total) for total in wanted]


def test_nothing_is_copied_on_the_cpu(mapped: np.ndarray):
    raw = as_tensor(mapped)
    with Uploader(torch.device("cpu")) as uploader:
        assert uploader.upload(raw).data_ptr() == raw.data_ptr()


class Stored:
    """Bytes that are read when they are sent."""

    def __init__(self, content: np.ndarray, fails_from: int) -> None:
        self.content = content
        self.nbytes = len(content)
        self.fails_from = fails_from

    def read_into(self, target: np.ndarray, start: int = 0) -> None:
        if start + len(target) > self.fails_from:
            raise ValueError("the file ends here")
        target[:] = self.content[start : start + len(target)]


def test_bytes_of_a_file_are_read_when_they_are_sent(mapped: np.ndarray, device: str):
    with Uploader(torch.device(device)) as uploader:
        sent = uploader.upload(Stored(mapped, len(mapped)))
        assert sent.device.type == device and torch.equal(sent.cpu(), as_tensor(mapped))
        with pytest.raises(ValueError, match="ends here"):
            uploader.upload(Stored(mapped, len(mapped) - 1))
        assert torch.equal(uploader.upload(Stored(mapped[:9], 9)).cpu(), as_tensor(mapped[:9]))
