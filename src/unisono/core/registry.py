"""Names to things: built-in, from other packages through entry points, or by dotted path or file."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from unisono.core.errors import UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Finds things by name; an unknown name lists the known ones.

    Every module of ``package`` is imported at the first look-up, so a new file there is registered by being there.
    Other packages add theirs with an entry point in the group ``unisono.<kind>s``.

    Args:
        kind: what is registered, in the singular, for messages.
        package: the package whose modules register the built-in things.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._things: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a thing under a name."""

        def decorate(thing: T) -> T:
            known = self._things.get(name)
            if known is not None and getattr(known, "__qualname__", "") != getattr(thing, "__qualname__", ""):
                raise ValueError(f"{self.kind} {name!r} is registered already")
            self._things[name] = thing
            return thing

        return decorate

    def __getitem__(self, name: str) -> T:
        if ":" in name or name.endswith(".py"):
            return self._from_path(name)
        self._load()
        if name not in self._things:
            raise UserError(self._unknown(name))
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._things))

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._things

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        for entry_point in importlib.metadata.entry_points(group=f"unisono.{self.kind}s"):
            self._things.setdefault(entry_point.name, entry_point.load())

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._things, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"There is no {self.kind} {name!r}.{hint} Known: {', '.join(self)}."

    def _from_path(self, name: str) -> T:
        location, _, attribute = name.rpartition(":") if ":" in name else (name, "", "")
        try:
            module = _import_file(Path(location)) if location.endswith(".py") else importlib.import_module(location)
        except (ImportError, OSError) as error:
            raise UserError(f"The {self.kind} {name!r} cannot be imported: {error}.") from error
        if attribute:
            if not hasattr(module, attribute):
                raise UserError(f"The {self.kind} {name!r} does not exist: {location} has no {attribute!r}.")
            return getattr(module, attribute)  # type: ignore[no-any-return]
        added = [thing for thing in self._things.values() if getattr(thing, "__module__", "") == module.__name__]
        if len(added) != 1:
            raise UserError(f"{location} registers {len(added)} {self.kind}s; write {location}:NAME to pick one.")
        return added[0]


def _import_file(path: Path) -> ModuleType:
    name = "unisono_user_" + path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        return sys.modules[name]
    if not path.is_file():
        raise OSError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
