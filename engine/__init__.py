"""What turns requests into tokens: scheduler, KV blocks, model runner, GGUF files, text and tokens.

    from engine import Engine, Message, Request

    with Engine() as engine:
        model = engine.load("model.gguf")
        prompt = model.template.encode([Message("user", "What is a tern?")])
        print(model.submit(Request(tuple(prompt), max_tokens=100)).result()[0])

These names are the floor's public face; what else its rooms hold is the floor's own. A name is imported
when it is asked for, so that `import engine` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.api.answer_format import THINK, AnswerFormat, MessageFormat, TagFormat
    from engine.api.errors import (
        DeviceLostError,
        EngineClosedError,
        EngineError,
        EngineFailedError,
        ModelFileError,
        RequestError,
        TemplateError,
        TokenizerError,
        UnsupportedModelError,
    )
    from engine.api.generation import Generation
    from engine.api.load_plan import LoadPlan, PlannedRelease, Release
    from engine.api.options import EngineOptions
    from engine.api.request import Event, Finished, FinishReason, Priority, Request, SamplingParams, TextDelta
    from engine.api.stats import EngineStats, ModelState, ModelStats, SequenceState, SequenceStats
    from engine.catalog import ModelSummary, model_paths, part_paths, summarize
    from engine.core.tick_log import TickRecord
    from engine.engine import Engine, Model, device_rules
    from engine.footprint.device import free_memory
    from engine.footprint.fit import Advice, AdviceKind, Fit, Room, Verdict, fit
    from engine.footprint.rules import DeviceRules
    from engine.footprint.shape import Footprint
    from engine.model.architectures import Architecture, architectures
    from engine.templates.turns import KeptAnswer, Message, Prompt
    from engine.tokenizer.tokenizer import Tokenizer

__all__ = [
    "THINK",
    "Advice",
    "AdviceKind",
    "AnswerFormat",
    "Architecture",
    "DeviceLostError",
    "DeviceRules",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "EngineFailedError",
    "EngineOptions",
    "EngineStats",
    "Event",
    "FinishReason",
    "Finished",
    "Fit",
    "Footprint",
    "Generation",
    "KeptAnswer",
    "LoadPlan",
    "Message",
    "MessageFormat",
    "Model",
    "ModelFileError",
    "ModelState",
    "ModelStats",
    "ModelSummary",
    "PlannedRelease",
    "Priority",
    "Prompt",
    "Release",
    "Request",
    "RequestError",
    "Room",
    "SamplingParams",
    "SequenceState",
    "SequenceStats",
    "TagFormat",
    "TemplateError",
    "TextDelta",
    "TickRecord",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
    "Verdict",
    "architectures",
    "device_rules",
    "fit",
    "free_memory",
    "model_paths",
    "part_paths",
    "summarize",
]

_HOMES = {
    "THINK": "engine.api.answer_format",
    "AnswerFormat": "engine.api.answer_format",
    "Architecture": "engine.model.architectures",
    "Advice": "engine.footprint.fit",
    "AdviceKind": "engine.footprint.fit",
    "DeviceLostError": "engine.api.errors",
    "DeviceRules": "engine.footprint.rules",
    "Engine": "engine.engine",
    "EngineClosedError": "engine.api.errors",
    "EngineError": "engine.api.errors",
    "EngineFailedError": "engine.api.errors",
    "EngineOptions": "engine.api.options",
    "EngineStats": "engine.api.stats",
    "Event": "engine.api.request",
    "FinishReason": "engine.api.request",
    "Finished": "engine.api.request",
    "Fit": "engine.footprint.fit",
    "Footprint": "engine.footprint.shape",
    "Generation": "engine.api.generation",
    "KeptAnswer": "engine.templates.turns",
    "LoadPlan": "engine.api.load_plan",
    "ModelState": "engine.api.stats",
    "PlannedRelease": "engine.api.load_plan",
    "Release": "engine.api.load_plan",
    "Message": "engine.templates.turns",
    "MessageFormat": "engine.api.answer_format",
    "Model": "engine.engine",
    "ModelFileError": "engine.api.errors",
    "ModelStats": "engine.api.stats",
    "ModelSummary": "engine.catalog",
    "Priority": "engine.api.request",
    "Prompt": "engine.templates.turns",
    "Request": "engine.api.request",
    "RequestError": "engine.api.errors",
    "Room": "engine.footprint.fit",
    "SamplingParams": "engine.api.request",
    "SequenceState": "engine.api.stats",
    "SequenceStats": "engine.api.stats",
    "TagFormat": "engine.api.answer_format",
    "TemplateError": "engine.api.errors",
    "TextDelta": "engine.api.request",
    "TickRecord": "engine.core.tick_log",
    "Tokenizer": "engine.tokenizer.tokenizer",
    "TokenizerError": "engine.api.errors",
    "UnsupportedModelError": "engine.api.errors",
    "architectures": "engine.model.architectures",
    "Verdict": "engine.footprint.fit",
    "device_rules": "engine.engine",
    "fit": "engine.footprint.fit",
    "free_memory": "engine.footprint.device",
    "model_paths": "engine.catalog",
    "part_paths": "engine.catalog",
    "summarize": "engine.catalog",
}
"""Where each name is defined."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
