import gguf
import numpy as np
import pytest
import torch
from gguf import quants

from kernels.quant import dequant
from kernels.quant.dequant import SUPPORTED, as_tensor, dequantize
from kernels.quant.formats import FORMATS, GGMLType

NUMBERS = {
    GGMLType.F64: np.float64,
    GGMLType.I8: np.int8,
    GGMLType.I16: np.int16,
    GGMLType.I32: np.int32,
    GGMLType.I64: np.int64,
}


def hostile_bytes(block, rng, count=600):
    """Random blocks among blocks of zeros, of ones, of one repeated byte, and of infinities and NaNs."""
    raw = rng.integers(0, 256, (count, block.nbytes), dtype=np.uint8)
    raw[0], raw[1] = 0x00, 0xFF
    raw[2:258] = np.arange(256, dtype=np.uint8)[:, None]
    halves = np.array([0x7C00, 0xFC00, 0x7E00, 0x7C01, 0x8000, 0x0001, 0x7BFF], dtype="<u2")
    for index, half in enumerate(halves.view(np.uint8).reshape(-1, 2)):
        raw[258 + index, :2] = half
        raw[268 + index, -2:] = half
    return raw


def reference(raw, type):
    if type in NUMBERS:
        return raw.reshape(-1).view(NUMBERS[type]).astype(np.float32)
    return quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType(int(type))).reshape(-1)


def assert_same_bits(ours, theirs):
    """Equal bit for bit; of a NaN only that it is one (its payload depends on the processor)."""
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.int32)[~nan], theirs.view(np.int32)[~nan])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("type", sorted(SUPPORTED), ids=lambda type: type.name)
def test_bit_exact_against_the_reference(type, monkeypatch):
    # The last slab is a single block.
    monkeypatch.setattr(dequant, "_CPU_SLAB", FORMATS[type].elements * 599)
    rng = np.random.default_rng(int(type))
    raw = hostile_bytes(FORMATS[type], rng) if FORMATS[type].nbytes > 8 else None
    if raw is None:
        raw = rng.integers(0, 256, (4096, FORMATS[type].nbytes), dtype=np.uint8)
    shape = (
        (3, len(raw) * FORMATS[type].elements // 3)
        if len(raw) % 3 == 0
        else (len(raw), FORMATS[type].elements)
    )
    got = dequantize(torch.from_numpy(raw.reshape(-1)), type, shape)
    assert got.shape == shape
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    assert_same_bits(got.numpy().reshape(-1), reference(raw, type))


def test_every_type_but_activation_formats_is_supported():
    assert set(FORMATS) - SUPPORTED == {GGMLType.Q8_1, GGMLType.Q8_K}
    for type in SUPPORTED - set(NUMBERS):
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(type))] == (
            FORMATS[type].elements,
            FORMATS[type].nbytes,
        )


def test_float_bits_pass_unchanged():
    raw = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8)
    same = dequantize(torch.from_numpy(raw), GGMLType.F32, (1024,))
    assert same.numpy().tobytes() == raw.tobytes()
    wide = dequantize(torch.from_numpy(raw), GGMLType.BF16, (2048,)).numpy()
    assert np.array_equal(wide.view(np.uint32) >> 16, raw.view("<u2"))


def test_result_never_shares_memory_with_the_file():
    raw = torch.zeros(16, dtype=torch.uint8)
    dequantize(raw, GGMLType.F32, (4,)).fill_(1)
    assert raw.sum() == 0


def test_slices_at_odd_addresses():
    raw = torch.arange(200, dtype=torch.uint8)
    for type, size in ((GGMLType.F32, 4), (GGMLType.F16, 2), (GGMLType.Q4_K, 144), (GGMLType.Q6_K, 0)):
        nbytes = size or 210
        source = torch.cat([raw, raw])
        shape = (FORMATS[type].elements,)
        assert torch.equal(
            dequantize(source[1 : 1 + nbytes], type, shape),
            dequantize(source[1 : 1 + nbytes].clone(), type, shape),
        )


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="takes 36 bytes"):
        dequantize(torch.zeros(18, dtype=torch.uint8), GGMLType.Q4_0, (2, 32))
    with pytest.raises(ValueError, match="Q4_0"):
        dequantize(torch.zeros(18, dtype=torch.uint8), GGMLType.Q4_0, (33,))
    with pytest.raises(ValueError, match="Q8_K"):
        dequantize(torch.zeros(292, dtype=torch.uint8), GGMLType.Q8_K, (256,))


def test_as_tensor_takes_read_only_arrays_silently(recwarn):
    array = np.arange(10, dtype=np.uint8)
    array.flags.writeable = False
    tensor = as_tensor(array)
    assert tensor.tolist() == list(range(10))
    assert tensor.data_ptr() == array.ctypes.data
    assert not recwarn
