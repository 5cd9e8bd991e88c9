"""What a pass reads of the processor's KV is on the GPU in its pages, and what it writes comes back."""

import pytest
import torch

from kernels.contract import PassLayout
from kernels.cuda.crossing import Crossing
from kernels.kv.slab_kv import SlabKV
from kernels.quant.formats import KVFormat
from kernels.reference.paged_kv import make_paged_kv
from kernels.streaming.visiting_kv import VisitingKV

SIZE, HEADS, DIM = 4, 2, 32


@pytest.mark.parametrize("kv_format", ["float16", "q8_0"])
def test_there_and_back(kv_format: KVFormat, device: str) -> None:
    place = torch.device(device)
    host = make_paged_kv(2, 9, HEADS, DIM, SIZE, kv_format, torch.device("cpu"))
    for layer in host.layers:
        layer.write(torch.arange(9 * SIZE), torch.randn(2 * HEADS, 9 * SIZE, DIM))
    before = host.layers[1].values.clone()
    visit = VisitingKV(host, SlabKV(1, 9, HEADS, DIM, SIZE, kv_format, place), Crossing(place))
    # A sequence of 6 tokens gets 3 more; another begins with 2, and sees its first block no more.
    tables = [[7, 3, 5], [0, 2]]
    slots = torch.tensor([3 * SIZE + 2, 3 * SIZE + 3, 5 * SIZE, 2 * SIZE + 1, 2 * SIZE + 2])
    layout = PassLayout([3, 2], [9, 7], tables, 0, torch.tensor([6, 7, 8, 5, 6]), slots)
    own = visit.enter(layout)
    assert own.block_tables == [[1, 2, 3], [0, 4]]
    assert own.slot_mapping.tolist() == [10, 11, 12, 17, 18]
    visit.bring(1)
    pages = visit.kv.pages.values[0]
    for block, page in ((7, 1), (3, 2), (2, 4)):
        kept = before[:, block * SIZE : (block + 1) * SIZE].unflatten(0, (2, HEADS))
        assert torch.equal(pages[page].cpu(), kept)
    pages.neg_()
    visit.take_back(1)
    after = host.layers[1].values
    for block in range(9):
        span = slice(block * SIZE, (block + 1) * SIZE)
        if block in (3, 2):
            assert torch.equal(after[:, span], -before[:, span])
        elif block != 5:
            assert torch.equal(after[:, span], before[:, span])
