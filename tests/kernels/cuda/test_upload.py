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
