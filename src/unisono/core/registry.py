"""Registries of objects by name: built-in, from other packages through entry points, or by dotted path or file."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from unisono.core.errors import UserError

T = TypeVar("T")

USER_MODULE = "unisono_user_"
"""Prefix of the names of modules that were imported from a user's own file."""


class Registry(Generic[T]):
    """Lookup of objects by name; an unknown name lists the known ones.

    Every module of ``package`` is imported at the first look-up, so a new file there is registered by being there.
    Other packages add theirs with an entry point in the group ``unisono.<kind>s``, imported when its name is asked for.

    Args:
        kind: what is registered, in the singular, for messages.
        package: the package whose modules register the built-in things.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._things: dict[str, T] = {}
        self._entry_points: dict[str, importlib.metadata.EntryPoint] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object under a name."""

        def decorate(thing: T) -> T:
            known = self._things.get(name)
            if known is not None and _origin(known) != _origin(thing):
                raise ValueError(f"{self.kind} {name!r} is registered already")
            self._things[name] = thing
            return thing

        return decorate

    def __getitem__(self, name: str) -> T:
        self._load()
        if is_code(name):
            return self._from_path(name)
        if name not in self:
            raise UserError(self._unknown(name))
        if name not in self._things:
            self._things[name] = self._from_entry_point(self._entry_points[name])
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted({*self._things, *self._entry_points}))

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._things or name in self._entry_points

    def plugin(self, name: str) -> str | None:
        """Return ``package.module:NAME`` of a thing that another package adds under this name; None for a built-in one."""
        self._load()
        entry_point = self._entry_points.get(name)
        return None if entry_point is None else entry_point.value

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        entry_points = importlib.metadata.entry_points(group=f"unisono.{self.kind}s")
        self._entry_points = {entry_point.name: entry_point for entry_point in entry_points}
        self._loaded = True

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, list(self), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"There is no {self.kind} {name!r}.{hint} Known: {', '.join(self)}."

    def _from_entry_point(self, entry_point: importlib.metadata.EntryPoint) -> T:
        try:
            return entry_point.load()  # type: ignore[no-any-return]
        except (ImportError, AttributeError) as error:
            package = entry_point.dist.name if entry_point.dist is not None else entry_point.module
            raise UserError(
                f"The {self.kind} {entry_point.name!r} of the package {package!r} cannot be imported: {error}."
            ) from error

    def _from_path(self, name: str) -> T:
        if ":" in name:
            return import_named(self.kind, name)  # type: ignore[no-any-return]
        module = _import(self.kind, name, name)
        added = [thing for thing in self._things.values() if getattr(thing, "__module__", "") == module.__name__]
        if len(added) != 1:
            raise UserError(f"{name} registers {len(added)} {self.kind}s; write {name}:NAME to pick one.")
        return added[0]


def is_code(name: str) -> bool:
    """Return whether a name says where code is, ``package.module:NAME`` or ``file.py``, and is not a registered one."""
    return ":" in name or name.endswith(".py")


def absolute_name(name: str) -> str:
    """Return a name, that of a file by its full path, so that the run can be read back from anywhere."""
    file, suffix, attribute = name.partition(".py")
    return f"{Path(file + suffix).resolve()}{attribute}" if suffix and attribute[:1] in ("", ":") else name


def import_named(kind: str, name: str) -> Any:
    """Return an object by where it is; raise a UserError that says why it cannot be had.

    Args:
        kind: what it is, in the singular, for messages.
        name: ``package.module:NAME`` or ``path/to/file.py:NAME``.
    """
    location, _, attribute = name.rpartition(":")
    if not location or not attribute or (location.startswith(".") and not location.endswith(".py")):
        raise UserError(f"A {kind} is written package.module:NAME or path/to/file.py:NAME, got {name!r}.")
    module = _import(kind, name, location)
    if not hasattr(module, attribute):
        raise UserError(f"The {kind} {name!r} does not exist: {location} has no {attribute!r}.")
    return getattr(module, attribute)


def _import(kind: str, name: str, location: str) -> ModuleType:
    file = Path(location) if location.endswith(".py") else None
    try:
        return importlib.import_module(location) if file is None else _import_file(file)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The {kind} {name!r} cannot be imported: {_import_problem(error, file)}.") from error


def _import_problem(error: Exception, file: Path | None) -> str:
    """Return why code cannot be imported; where it broke off, the line of the user's file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if file and Path(frame.filename) == file.resolve()
    ]
    if isinstance(error, ImportError | OSError) or not lines:
        return str(error).rstrip(".")
    return f"line {lines[-1]}: {type(error).__name__}: {error}".rstrip(".")


def _origin(thing: object) -> tuple[object, ...]:
    """Return where an object is defined: the same place may register it again, as a script that is also imported does."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    file = getattr(module, "__file__", None)
    return (Path(file).resolve() if file else module, getattr(thing, "__qualname__", id(thing)))


class UserFiles:
    """The users' own files that this process has imported; a process that unpickles this object imports them too."""

    def __reduce__(self) -> tuple[Callable[..., UserFiles], tuple[list[str]]]:
        modules = [module for name, module in list(sys.modules.items()) if name.startswith(USER_MODULE)]
        return _import_user_files, ([str(module.__file__) for module in modules],)


def _import_user_files(paths: list[str]) -> UserFiles:
    for path in paths:
        with suppress(ImportError, OSError):  # it may be needed no more; if it is, unpickling what it defines says so
            _import_file(Path(path))
    return UserFiles()


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    # Two files of the same name are two modules.
    name = f"{USER_MODULE}{path.stem}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise OSError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
