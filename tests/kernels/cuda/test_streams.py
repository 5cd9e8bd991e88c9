"""A stream is one owner's alone, however many torch hands out, and free again when the owner is gone."""

from types import SimpleNamespace

import pytest
import torch

from kernels.cuda import streams as own_streams
from kernels.cuda.streams import OwnStream, give_back_spare, owner_of


@pytest.fixture(params=["torch's", "pretended"])
def streams(request, device, monkeypatch) -> torch.device:
    """Streams of a GPU, or some that are handed out in turn as torch does."""
    if request.param == "pretended":
        turns = {0: 0, -1: 0}

        def handed_out(device, priority):
            turns[priority] += 1
            return SimpleNamespace(device_index=7, cuda_stream=(turns[priority] % 32) + 100 * priority)

        monkeypatch.setattr(torch.cuda, "Stream", handed_out)
        monkeypatch.setattr(own_streams, "_known", {})
        return torch.device("cpu")
    if device == "cpu":
        pytest.skip("no GPU")
    return torch.device("cuda", 0)


def test_no_stream_has_two_owners(streams):
    owners = [OwnStream(streams) for _ in range(40)]
    handles = {(owner.stream.device_index, owner.stream.cuda_stream) for owner in owners}
    assert len(handles) == 40
    assert all(owner_of(owner.stream) is owner for owner in owners)
    gone = owners.pop().stream
    assert owner_of(gone) is None
    for _ in range(200):
        # Each is free again before the next is taken: there are fewer than 200.
        del owners[-1]
        owners.append(OwnStream(streams))


def test_streams_that_are_free_are_taken_again_before_others(streams):
    """Loading and unloading for ever uses a few streams: each that runs matrices holds memory for good."""
    used = set()
    stays = OwnStream(streams)
    for _ in range(50):
        owners = [OwnStream(streams), OwnStream(streams)]
        owners[0].sides(2)
        used |= {owner.stream.cuda_stream for owner in (*owners, *owners[0]._sides)}
        del owners
    assert len(used) == 4
    assert stays.stream.cuda_stream not in used


def test_all_taken_is_an_error_in_words_and_work_beside_gets_fewer(streams):
    owners = []
    with pytest.raises(RuntimeError, match="unload a model"):
        while len(owners) < 100:
            owners.append(OwnStream(streams))
    first = owners[0]
    assert first.sides(2) == []
    del owners[-1]
    assert len(first.sides(2)) == 1
    owners.clear()
    assert len(first.sides(2)) == 2
    before = len(own_streams._taken)
    del first
    assert len(own_streams._taken) == before - 3, "a stream and those beside it"


def test_a_gpu_that_is_lost_fails_nobody_who_gives_memory_back(monkeypatch, caplog):
    """Spare memory is given back on all GPUs at once."""

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    give_back_spare()
    assert "illegal memory access" in caplog.text
