"""Will a draft make this model faster on this machine? The public API, imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.errors import AdvisorError as AdvisorError
    from advisor.models.description import ModelDescription as ModelDescription

__version__ = "0.1.0"

# name -> module; kept lazy so that `import advisor` costs nothing and has no side effects.
_EXPORTS = {
    "AdvisorError": "advisor.errors",
    "ModelDescription": "advisor.models.description",
}

__all__ = ["AdvisorError", "ModelDescription", "__version__"]


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}") from None
    return getattr(importlib.import_module(module), name)
