"""Names are found in the package, in other packages, in modules and in files; unknown ones list the known."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.core.errors import UserError
from unisono.core.registry import Registry

SHAPES = """
import sys
from unisono.core.registry import Registry
registry = Registry("shape", "{package}.kinds")
"""
KIND = """
from {package} import registry
@registry.register("{name}")
class {cls}:
    pass
"""


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Registry[type]:
    """A registry whose built-in things are the modules of a package on disk: 'circle' and 'square'."""
    package = f"shapes_{abs(hash(request.node.name))}"
    kinds = tmp_path / package / "kinds"
    kinds.mkdir(parents=True)
    (tmp_path / package / "__init__.py").write_text(SHAPES.format(package=package))
    (kinds / "__init__.py").write_text("")
    for name in ("circle", "square"):
        (kinds / f"{name}.py").write_text(KIND.format(package=package, name=name, cls=name.title()))
    monkeypatch.syspath_prepend(str(tmp_path))
    found: Registry[type] = importlib.import_module(package).registry
    return found


def user_file(path: Path, shapes: Registry[type], *names: str) -> Path:
    """A file that registers classes named after ``names``."""
    package = shapes._package.removesuffix(".kinds")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(KIND.format(package=package, name=name, cls=name.title()) for name in names))
    return path


def install(directory: Path, entry_points: str, **modules: str) -> None:
    """What pip leaves behind: modules, and a dist-info directory with entry points."""
    info = directory / "extra_shapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-shapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    for name, text in modules.items():
        (directory / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


def test_modules_of_the_package_register_by_being_there(shapes: Registry[type]) -> None:
    assert list(shapes) == ["circle", "square"]
    assert shapes["circle"].__name__ == "Circle"
    assert "square" in shapes
    assert "cube" not in shapes


def test_an_unknown_name_lists_the_known_and_suggests(shapes: Registry[type]) -> None:
    with pytest.raises(UserError) as caught:
        shapes["circel"]
    assert str(caught.value) == "There is no shape 'circel'. Did you mean 'circle'? Known: circle, square."
    with pytest.raises(UserError, match=r"There is no shape 'xyz'\. Known: circle, square\."):
        shapes["xyz"]


def test_a_name_belongs_to_one_thing(shapes: Registry[type]) -> None:
    class Circle:
        pass

    class Other:
        pass

    shapes.register("new")(Circle)
    shapes.register("new")(Circle)
    with pytest.raises(ValueError, match="shape 'new' is registered already"):
        shapes.register("new")(Other)
    list(shapes)
    with pytest.raises(ValueError, match="shape 'circle' is registered already"):
        shapes.register("circle")(Circle)


def test_things_without_a_name_of_their_own_are_told_apart(shapes: Registry[type]) -> None:
    first, second = object(), object()
    shapes.register("thing")(first)  # type: ignore[arg-type]
    shapes.register("thing")(first)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="registered already"):
        shapes.register("thing")(second)  # type: ignore[arg-type]


def test_a_broken_module_of_the_package_breaks_every_look_up(shapes: Registry[type], tmp_path: Path) -> None:
    broken = next(tmp_path.glob("shapes_*/kinds")) / "broken.py"
    broken.write_text("raise RuntimeError('broken')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            shapes["circle"]


def test_dotted_path(shapes: Registry[type], tmp_path: Path) -> None:
    (tmp_path / "my_shapes.py").write_text("class Star: pass")
    assert shapes["my_shapes:Star"].__name__ == "Star"
    with pytest.raises(UserError, match="my_shapes has no 'Moon'"):
        shapes["my_shapes:Moon"]
    with pytest.raises(UserError, match="cannot be imported: No module named 'nowhere'"):
        shapes["nowhere:Star"]


@pytest.mark.parametrize("name", [":Star", ".relative:Star", ":"])
def test_half_a_path_is_explained(shapes: Registry[type], name: str) -> None:
    with pytest.raises(UserError, match=r"package\.module:NAME"):
        shapes[name]


def test_file_path(shapes: Registry[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = user_file(tmp_path / "mine.py", shapes, "star")
    assert shapes[str(path)].__name__ == "Star"
    assert shapes[f"{path}:Star"] is shapes[str(path)] is shapes["star"]
    monkeypatch.chdir(tmp_path)
    assert shapes["./mine.py"] is shapes["mine.py:Star"] is shapes["star"]


def test_a_file_must_register_one_thing_or_name_it(shapes: Registry[type], tmp_path: Path) -> None:
    two = user_file(tmp_path / "two.py", shapes, "star", "moon")
    with pytest.raises(UserError, match=r"registers 2 shapes; write .*two\.py:NAME"):
        shapes[str(two)]
    assert shapes[f"{two}:Moon"].__name__ == "Moon"
    with pytest.raises(UserError, match="registers 0 shapes"):
        shapes[str(user_file(tmp_path / "none.py", shapes))]
    with pytest.raises(UserError, match=r"there is no file .*absent\.py"):
        shapes[str(tmp_path / "absent.py")]


def test_two_files_of_the_same_name_are_two_things(shapes: Registry[type], tmp_path: Path) -> None:
    one = user_file(tmp_path / "a" / "mine.py", shapes, "star")
    other = user_file(tmp_path / "b" / "mine.py", shapes, "moon")
    assert shapes[str(one)].__name__ == "Star"
    assert shapes[str(other)].__name__ == "Moon"
    assert shapes[str(one)].__name__ == "Star"


def test_a_file_that_failed_is_tried_again(shapes: Registry[type], tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text("class Star: pass\nraise RuntimeError('half way')")
    for _ in range(2):
        with pytest.raises(UserError, match=r"half\.py:Star' cannot be imported: line 2: RuntimeError: half way\."):
            shapes[f"{path}:Star"]


def test_a_mistake_in_the_syntax_is_a_sentence_with_its_line(shapes: Registry[type], tmp_path: Path) -> None:
    path = tmp_path / "slip.py"
    path.write_text("class Star: pass\nclass Moon: pass)\n")
    with pytest.raises(UserError, match=r"slip\.py' cannot be imported: .*slip\.py, line 2: unmatched '\)'\."):
        shapes[str(path)]


def test_a_script_may_name_its_own_file(shapes: Registry[type], tmp_path: Path) -> None:
    """The class is registered twice then, as part of __main__ and of the imported file."""
    path = user_file(tmp_path / "script.py", shapes, "star")
    path.write_text(path.read_text() + f"\nif __name__ == '__main__': print(registry[{str(path)!r}].__module__)")
    search = f"{tmp_path}:{Path(importlib.import_module('unisono.core').__file__ or '').parents[2]}"
    done = subprocess.run(
        [sys.executable, str(path)], env={"PYTHONPATH": search}, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.startswith("unisono_user_script")


def test_other_packages_add_theirs_by_entry_point(shapes: Registry[type], tmp_path: Path) -> None:
    install(
        tmp_path,
        "[unisono.shapes]\nstar = extra_shapes:Star\ncircle = extra_shapes:Star\n[unisono.others]\nmoon = extra_shapes:Moon\n",
        extra_shapes="class Star: pass",
    )
    assert list(shapes) == ["circle", "square", "star"]
    assert "star" in shapes
    with pytest.raises(UserError, match="Did you mean 'star'"):
        shapes["starr"]
    assert "extra_shapes" not in sys.modules, "a plug-in is imported when it is asked for"
    assert shapes["star"].__module__ == "extra_shapes"
    assert shapes["circle"].__name__ == "Circle", "built-in names cannot be taken over"
    del sys.modules["extra_shapes"]


@pytest.mark.parametrize("text", ["import a_package_that_is_not_there", "class Moon: pass"])
def test_a_broken_plug_in_harms_nobody_else(shapes: Registry[type], tmp_path: Path, text: str) -> None:
    install(tmp_path, "[unisono.shapes]\nstar = extra_broken:Star\n", extra_broken=text)
    assert shapes["circle"].__name__ == "Circle"
    for _ in range(2):
        with pytest.raises(UserError, match="shape 'star' of the package 'extra-shapes' cannot be imported"):
            shapes["star"]
    sys.modules.pop("extra_broken", None)
