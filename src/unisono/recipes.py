"""Recipes: find one by its reference, merge what it extends, choose the method, and keep where every option comes from.

A recipe is one setting of a paper with the numbers of every method in it; the method is chosen when it is run.

1. ``extends = [...]`` names recipes or relative paths. Each file is merged once, after what it extends; later entries win, the
   file itself last.
2. A ``[method]`` that names another method replaces the whole table.
3. ``[methods.X]`` may hold any table and applies only when X runs. ``[method]`` belongs to the default method.
4. Later sources override earlier ones: option defaults, ``Method.defaults``, tables, ``[methods.X]``, flags, ``--set``.
5. ``[recipe] fragment = true`` marks numbers for other recipes to extend: it is neither listed nor run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from importlib import resources
from pathlib import Path
from typing import Any

from unisono.config import TABLES, check_format
from unisono.core.config import Tree, check_options, closest, merge, parse_overrides, read_toml
from unisono.core.errors import UserError
from unisono.core.method import methods
from unisono.core.registry import absolute_name

Reference = str | Path | Mapping[str, Any]
SHORTCUTS = {
    "method": "method.name",
    "dataset": "data.dataset",
    "clients": "partition.num_clients",
    "alpha": "partition.alpha",
    "rounds": "federation.rounds",
    "workers": "engine.workers",
    "seed": "run.seed",
    "name": "run.name",
    "engine": "engine.kind",
}
"""Flags of the command line and keyword arguments of ``unisono.run``, and the option each one sets."""
_OWN_KEYS = ("extends", "methods")
"""Keys of a recipe that are no tables of a run."""


@dataclass(frozen=True)
class Layer:
    """Options from one source.

    Args:
        source: a recipe, a file, a flag or ``--set``, as people call it.
        tree: the options.
    """

    source: str
    tree: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """A recipe before a method is chosen.

    Args:
        source: its name or path.
        files: it and all that it extends, in the order in which they are merged.
        is_method: whether it is a method's name alone.
    """

    source: str
    files: tuple[Layer, ...]
    is_method: bool = False

    @property
    def fragment(self) -> bool:
        """True if it is there to be extended only; what it extends does not matter."""
        value = _table(self.files[-1].tree, "recipe").get("fragment", False)
        if not isinstance(value, bool):
            raise UserError(f"{self.source}: recipe.fragment must be true or false, got {value!r}.")
        return value

    @cached_property
    def default_method(self) -> str | None:
        """The method that runs where nobody asks for another."""
        named = [table["name"] for table in (_table(file.tree, "method") for file in self.files) if "name" in table]
        return named[-1] if named else None

    @property
    def own_methods(self) -> list[str]:
        """The methods that it has numbers for, the default first."""
        first = [] if self.default_method is None else [self.default_method]
        return list(dict.fromkeys([*first, *(name for file in self.files for name in file.tree.get("methods", {}))]))

    @property
    def about(self) -> Tree:
        """Its table ``[recipe]``."""
        return reduce(merge, (_table(file.tree, "recipe") for file in self.files), {})

    def layers(self, method: str | None) -> list[Layer]:
        """The options of a run of this method: tables first, then ``[methods.X]``.

        Args:
            method: the name of a method, None where nobody named one.
        """
        found = []
        for number, file in enumerate(self.files):
            tree = {key: value for key, value in file.tree.items() if key not in _OWN_KEYS}
            if _table(tree, "recipe"):
                tree["recipe"] = {key: value for key, value in tree["recipe"].items() if key != "fragment"}
            if _table(tree, "method") and not (_same(method, self.default_method) and number >= self._method_start):
                del tree["method"]
            found.append(Layer(file.source, tree))
        for file in self.files:
            for name, own in file.tree.get("methods", {}).items():
                if _same(name, method):
                    found.append(Layer(f"{file.source} [methods.{name}]", own))
        return found

    def check(self) -> None:
        """Raise a UserError for anything in ``[methods.X]`` that no run could take, whichever method runs."""
        for file in self.files:
            own = file.tree.get("methods", {})
            if not isinstance(own, Mapping):
                raise UserError(f"{file.source}: methods must be written as [methods.NAME], got {own!r}.")
            for name, tables in own.items():
                _check_methods_table(name, tables, file.source)

    @property
    def _method_start(self) -> int:
        """The first file whose table ``[method]`` counts: those before it belong to a method that a later file replaces."""
        start, current = 0, None
        for number, file in enumerate(self.files):
            name = _table(file.tree, "method").get("name")
            if name is not None:
                start = start if current is None or _same(name, current) else number
                current = name
        return start


@dataclass(frozen=True)
class LayeredConfig:
    """The options of a run, by where they come from; later layers win.

    Args:
        layers: options by source.
        notes: sentences that the user should read.
        is_method: whether it began with a method's name alone.
    """

    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
    is_method: bool = False

    @property
    def tree(self) -> Tree:
        """All layers in one, as ``unisono.config.resolve`` takes it."""
        return reduce(merge, (layer.tree for layer in self.layers), {})

    def source(self, path: Sequence[str]) -> str | None:
        """Return the source that set an option, None where it has a default.

        Args:
            path: table, option and, where the option is a table, what is inside.
        """
        return next((layer.source for layer in reversed(self.layers) if _holds(layer.tree, path)), None)


def build_tree(reference: Reference, flags: Mapping[str, Any] | None = None, overrides: Iterable[str] = ()) -> Tree:
    """Return a recipe with flags and ``--set`` assignments on top.

    Args:
        reference: as ``load_recipe`` takes it.
        flags: values by the names in ``SHORTCUTS``; None means not given.
        overrides: ``section.key=value`` assignments; they win.
    """
    return assemble(reference, [*flag_layers(flags or {}), Layer("--set", parse_overrides(overrides))]).tree


def assemble(reference: Reference, over: Sequence[Layer] = ()) -> LayeredConfig:
    """Return the options of a run, each with its source.

    Args:
        reference: as ``load_recipe`` takes it.
        over: what stands above the recipe; ``method.name`` in it chooses the method.
    """
    recipe = load_recipe(reference)
    if recipe.fragment:
        raise UserError(_is_fragment(recipe.source))
    recipe.check()
    asked = [name for name in (_table(layer.tree, "method").get("name") for layer in over) if name is not None]
    method = asked[-1] if asked else recipe.default_method
    notes = []
    if method is not None and not recipe.is_method and not any(_same(method, own) for own in recipe.own_methods):
        notes.append(f"{recipe.source} has no numbers of its own for {method}, which runs with the common ones.")
    return LayeredConfig((*recipe.layers(method), *over), tuple(notes), recipe.is_method)


def flag_layers(flags: Mapping[str, Any]) -> list[Layer]:
    """Return a layer for every flag that is given.

    Args:
        flags: values by the names in ``SHORTCUTS``; None means not given.
    """
    for name in flags:
        if name not in SHORTCUTS:
            raise UserError(
                f"There is no option {name!r}.{closest(name, SHORTCUTS)} Known: {', '.join(SHORTCUTS)}, or set=[...]."
            )
    given = [(name, SHORTCUTS[name].split("."), value) for name, value in flags.items() if value is not None]
    return [Layer(f"--{name}", {table: {key: value}}) for name, (table, key), value in given]


def load_recipe(reference: Reference) -> Recipe:
    """Return the recipe behind a path, a name or a dictionary; UserError where there is none.

    Args:
        reference: a .toml file, the name of a recipe that comes with the package, the name or .py file of a method, or tables.
    """
    if isinstance(reference, Mapping):
        return _with_parents(dict(reference), "the dictionary", Path())
    name = str(reference)
    if name.endswith(".toml"):
        return _read(Path(name))
    known = _files()
    if name in known:
        return _read_own(known[name])
    if name in methods or ":" in name or name.endswith(".py"):
        return Recipe(name, (Layer(name, {"method": {"name": name}}),), is_method=True)
    near = closest(name, [*list_recipes(), *methods])
    raise UserError(
        f"There is no recipe or method {name!r}.{near} Methods: {', '.join(methods)}. "
        "Recipes: see 'unisono list recipes', or give the path of a .toml file."
    )


@cache
def list_recipes() -> dict[str, Path]:
    """Return the recipes that come with the package and can be run, by name."""
    return {name: path for name, path in _files().items() if not _table(read_toml(path), "recipe").get("fragment", False)}


@cache
def _files() -> dict[str, Path]:
    """All recipe files of the package, fragments included, by name."""
    root = Path(str(resources.files("unisono"))) / "recipes"
    found = {path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.toml")}
    return {name: found[name] for name in sorted(found)}


@cache
def _names() -> dict[Path, str]:
    """The names of the package's recipe files, by their full paths."""
    return {path.resolve(): name for name, path in _files().items()}


@cache
def _read_own(path: Path) -> Recipe:
    """A recipe of the package, which no one changes while the program runs."""
    return _read(path)


def _read(path: Path) -> Recipe:
    return _with_parents(read_toml(path), _label(path), path.parent, (path.resolve(),))


def _with_parents(tree: Tree, source: str, folder: Path, chain: tuple[Path, ...] = ()) -> Recipe:
    """A tree with the files that it extends before it.

    Args:
        tree: the content of a file.
        source: its label.
        folder: where relative paths start.
        chain: the file itself and those that led to it.
    """
    found: dict[Path, Layer] = {}
    _collect(tree, source, folder, chain, found)
    return Recipe(source, (*found.values(), Layer(source, tree)))


def _collect(tree: Tree, source: str, folder: Path, chain: tuple[Path, ...], found: dict[Path, Layer]) -> None:
    """Add what a file extends to ``found``, each file once, after what it extends itself."""
    check_format(tree, source)
    for path in _parents(tree, source, folder):
        place = path.resolve()
        if place in chain:
            circle = " -> ".join(_label(link) for link in (*chain[chain.index(place) :], place))
            raise UserError(f"extends goes in a circle: {circle}.")
        if place not in found:
            parent = read_toml(path)
            _collect(parent, _label(path), path.parent, (*chain, place), found)
            found[place] = Layer(_label(path), parent)


def _parents(tree: Tree, source: str, folder: Path) -> list[Path]:
    """The files that a tree extends, by name or by path."""
    names = tree.get("extends", [])
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise UserError(f'{source}: extends must be a list of recipes or paths, such as ["orchestra/cifar10"], got {names!r}.')
    known = _files()
    paths = []
    for name in names:
        path = folder / name if name.endswith(".toml") else known.get(name)
        if path is None:
            raise UserError(f"{source} extends {name!r}, which is neither a recipe nor a .toml file.{closest(name, known)}")
        if not path.is_file():
            raise UserError(f"{source} extends {name!r}, and there is no file {path}.")
        paths.append(path)
    return paths


def _check_methods_table(name: str, tables: Any, source: str) -> None:
    where = f"{source}: methods.{name}"
    if name not in methods and ":" not in name and not name.endswith(".py"):
        raise UserError(f"{where} names no known method.{closest(name, methods)} Known: {', '.join(methods)}.")
    if not isinstance(tables, Mapping):
        raise UserError(f"{where} must be a table of tables, such as [methods.{name}.training], got {tables!r}.")
    kinds = {**TABLES, "method": methods[name].Config}
    for table, values in tables.items():
        if table not in kinds:
            raise UserError(f"{where}.{table} is not a known table.{closest(table, kinds)} Known: {', '.join(sorted(kinds))}.")
        if table == "method" and isinstance(values, Mapping) and "name" in values:
            raise UserError(f"{where}.method.name must be left out: these are numbers of {name}.")
        check_options(kinds[table], values, f"{where}.{table}")


def _is_fragment(source: str) -> str:
    users = [name for name in list_recipes() if source in (file.source for file in load_recipe(name).files)]
    remedy = f"run one that extends it, such as {users[0]}" if users else "run one that extends it"
    return f"{source} is a fragment, numbers for other recipes to extend: {remedy}."


def _label(path: Path) -> str:
    """The name of a recipe of the package, or a path as short as it can be written here."""
    own = _names().get(path.resolve())
    return own if own is not None else min(str(path), os.path.relpath(path), key=len)


def _table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table, empty where there is none or something else stands in its place."""
    value = tree.get(name)
    return value if isinstance(value, Mapping) else {}


def _same(first: Any, second: Any) -> bool:
    """Return whether two names are those of the same method."""
    both = isinstance(first, str) and isinstance(second, str)
    return absolute_name(first) == absolute_name(second) if both else first == second


def _holds(tree: Mapping[str, Any], path: Sequence[str]) -> bool:
    node: Any = tree
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return not isinstance(node, Mapping)
        node = node[part]
    return True
