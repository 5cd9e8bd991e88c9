"""The errors that the engine raises on purpose.

Every message is a whole sentence for a person: it names the file, field or option and says what to
do. The app shows `str(error)` and never a traceback.
"""


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class InvariantError(EngineError):
    """The engine's own bookkeeping contradicts itself: a bug, never the user's doing."""


class ModelFileError(EngineError):
    """A model file is broken, hostile or of an unsupported kind; names file, field and offset."""


class UnsupportedModelError(ModelFileError):
    """A well-formed file that needs an architecture, type or tokenizer not supported here."""


class TokenizerError(EngineError):
    """A tokenizer cannot be built from the file's metadata."""


class TemplateError(EngineError):
    """A chat template cannot be rendered for these messages."""


class RequestError(EngineError):
    """A request was refused at submit; names the field, its value and the limit."""


class EngineClosedError(EngineError):
    """The engine or the model was closed before the call."""


class EngineFailedError(EngineClosedError):
    """The device failed and could not be brought back; nothing is served until a restart."""


class DeviceLostError(EngineError):
    """The device computes nothing more; what it held is gone."""
