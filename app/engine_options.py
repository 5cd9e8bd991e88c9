"""The engine that the settings describe, for the app and every command."""

from typing import TYPE_CHECKING

from app.settings import EngineSettings

if TYPE_CHECKING:
    from engine.engine import Engine


def make_engine(
    settings: EngineSettings,
    device: str | None = None,
    vram_limit_bytes: int | None = None,
    batch_independent: bool = False,
) -> "Engine":
    """Start an engine; torch is imported by this call, not before.

    device, vram_limit_bytes, batch_independent: override the settings' ones. Raises `EngineError` naming
    an option.
    """
    from app.torch_start import import_torch

    import_torch()
    from engine.engine import Engine

    return Engine(
        device or settings.device,
        kv_budget_bytes=settings.kv_budget_bytes,
        vram_limit_bytes=vram_limit_bytes or settings.vram_limit_bytes,
        host_kv_bytes=settings.host_kv_bytes,
        kv_dtype=settings.kv_dtype,
        weight_dtype=settings.weight_dtype,
        tick_factor=settings.tick_factor,
        threads=settings.threads or None,
        batch_independent=batch_independent or settings.batch_independent,
    )
