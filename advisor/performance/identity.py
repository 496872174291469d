"""A cache by object identity: hashing a description of sixty layers would cost more than the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """Values derived from immutable objects, found again as long as these very objects live."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._found: dict[Hashable, tuple[tuple[Any, ...], T]] = {}

    def get(self, owners: tuple[Any, ...], extra: Hashable, make: Callable[[], T]) -> T:
        """The value made for ``owners`` and ``extra`` before, or a new one from ``make``."""
        key = (*map(id, owners), extra)
        entry = self._found.get(key)
        if entry is not None:
            # An id may be reused after its object died; the weak references tell.
            for reference, owner in zip(entry[0], owners, strict=True):
                if reference() is not owner:
                    break
            else:
                return entry[1]
        if len(self._found) >= self._limit:
            self._found.clear()
        value = make()
        self._found[key] = (tuple(ref(o) for o in owners), value)
        return value
