"""The rules of a device, told by the operations that serve it, and what it has free."""

from typing import TYPE_CHECKING

from engine.device.bandwidth import gpu_bandwidth, host_bandwidth
from engine.device.free_memory import free_gpu_bytes, free_host_bytes
from engine.footprint.rules import DeviceRules, Holding

if TYPE_CHECKING:
    from kernels.contract import Operations


def rules_of(ops: "Operations") -> DeviceRules:
    """How these operations hold weights and KV."""
    widened = ops.weight_format in ("float32", "bfloat16")
    repacked = Holding.PLANES if ops.few_tokens is None else Holding.PACKED
    title, gpu = _names(ops)
    return DeviceRules(
        device=str(ops.device),
        title=title,
        holding=Holding.DENSE if widened else repacked,
        weight_itemsize=ops.weight_itemsize,
        kv_format=ops.kv_format,
        block_size=ops.block_size,
        gpu=gpu,
        kv_choices=ops.kv_choices,
        pass_tokens=0 if widened or repacked is Holding.PACKED else ops.max_prefill_tokens,
    )


def _names(ops: "Operations") -> tuple[str, str]:
    """What a person and what the driver calls the device."""
    if ops.device.type != "cuda":
        return "this computer's processor", ""
    import torch

    properties = torch.cuda.get_device_properties(ops.device)
    return properties.name, f"GPU-{properties.uuid}"


def free_memory(rules: DeviceRules) -> int | None:
    """Bytes that the device has free; None where nobody says it."""
    return free_gpu_bytes(rules.gpu) if rules.on_gpu else free_host_bytes()


def read_bandwidth(rules: DeviceRules, threads: int) -> float | None:
    """Bytes a second that the device's memory gives, to so many threads of a processor; None: not known.

    Takes some 50 ms of a processor.
    """
    return gpu_bandwidth(rules.gpu) if rules.on_gpu else host_bandwidth(threads)
