"""The engine that the settings describe, for the app and every command."""

import sys
from typing import TYPE_CHECKING, Any

from app.models.builtin import model_name
from app.models.fit.device import remember_rules
from app.settings.file import EngineSettings

if TYPE_CHECKING:
    from engine import AnyEngine


_SWITCH_SECONDS = 0.00005


def switch_often() -> None:
    """Let threads have the interpreter soon after they ask for it.

    At Python's 5 ms the engine's thread, which asks hundreds of times a tick, would wait that long for
    every frame that is painted, and a key for every piece of what is imported beside it.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def make_engine(settings: EngineSettings, *, keep_kv: bool = False, **overrides: Any) -> "AnyEngine":
    """Start an engine, or several GPUs' where settings leave the choice; torch is imported by this call.

    keep_kv: whether contexts are kept in files, for who will go on with them. overrides: fields of
    `EngineOptions` that are not to be the settings' ones; None overrides nothing. Raises `EngineError`
    naming an option.
    """
    from app.models.torch_start import import_torch
    from app.settings.paths import locations

    switch_often()
    import_torch()
    from engine import open_engine

    options: dict[str, Any] = {
        "device": settings.device,
        "kv_budget_bytes": settings.kv_budget_bytes,
        "vram_limit_bytes": settings.vram_limit_bytes,
        "host_layers": settings.host_layers_wanted,
        "host_kv_bytes": settings.host_kv_bytes,
        "kv_dtype": settings.kv_dtype,
        "weight_dtype": settings.weight_dtype,
        "tick_factor": settings.tick_factor or None,
        "threads": settings.threads or None,
        "cache_folder": locations().cache / "kernels",
        "speculation": settings.speculation,
        "batch_independent": settings.batch_independent,
        "name_of": model_name,
    }
    if keep_kv:
        options |= {"kv_disk_folder": locations().kv_folder, "kv_disk_bytes": settings.kv_disk_bytes}
    given = {name: value for name, value in overrides.items() if value is not None}
    engine = open_engine(**options | given)
    if not given:
        remember_rules(engine.rules, settings, locations().cache)
    return engine
