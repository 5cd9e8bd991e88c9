"""The architectures that run, a file for each family; names are those of `general.architecture`.

A module here names its families in `FAMILIES`; adding one touches no other file.
"""

from importlib import import_module
from pkgutil import iter_modules

from engine.model.family import Family

FAMILIES: dict[str, Family] = {
    family.architecture: family
    for module in iter_modules(__path__)
    for family in getattr(import_module(f"{__name__}.{module.name}"), "FAMILIES", ())
}


def supported_architectures() -> str:
    """The names in one line, for error messages."""
    return ", ".join(sorted(FAMILIES))
