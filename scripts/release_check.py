"""Build wheel and sdist, install each into an empty environment, and run the demo there: ``make release-check``.

Neither the repository nor the user's home is seen by what is installed. The files stay in ``dist/``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
DEMO = ["demo", "--set", "federation.rounds=1", "--set", "data.limit=200", "--set", "model.backbone=cfcl-cnn"]
SHIPPED = ("py.typed", "data/files/", "recipes/demo.toml", "studies/files/", "studies/papers/", "report/assets/")
CORE = (
    "import unisono; assert all(hasattr(unisono, name) for name in unisono.__all__); "
    "print(unisono.__version__, unisono.__file__)"
)
SIZE = (
    "import importlib.metadata as m, pathlib\n"
    "for d in m.distributions():\n"
    "    sizes = [p.stat().st_size for p in (pathlib.Path(d.locate_file(f)) for f in d.files or ()) if p.is_file()]\n"
    "    print(f\"{sum(sizes) / 1e6:8.1f} MB  {d.metadata['Name']}\")"
)


def main() -> int:
    """Check both files; the first command that fails ends the check."""
    run(ROOT, [sys.executable, "-m", "build", "--quiet", "--outdir", "dist", "."], dict(os.environ))
    (wheel,), (sdist,) = (newest(pattern) for pattern in ("*.whl", "*.tar.gz"))
    with zipfile.ZipFile(wheel) as archive:
        check_names(wheel, archive.namelist())
    with tarfile.open(sdist) as archive:
        check_names(sdist, archive.getnames())
    with TemporaryDirectory() as name:
        home = Path(name)
        python = home / "venv" / "bin" / "python"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "UNISONO", "VIRTUAL"))}
        clean |= {"HOME": name, "PATH": os.pathsep.join((str(python.parent), os.environ["PATH"]))}
        run(home, [sys.executable, "-m", "venv", "venv"], clean)
        pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        for file in (wheel, sdist):
            again = ["--no-deps", "--force-reinstall"] if file == sdist else []
            run(home, [*pip, *again, str(file)], clean)
            run(home, [str(python), "-c", CORE], clean)
            run(home, [str(python.with_name("unisono")), *DEMO, "--directory", file.name], clean)
            if len([*(home / file.name).glob("*/report.html")]) != 2:
                raise SystemExit(f"{file.name}: the demo left no reports")
        run(home, [str(python), "-c", SIZE], clean)
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and {sdist.name} install and run the demo.")
    return 0


def newest(pattern: str) -> list[Path]:
    """Return the file of ``dist/`` that was written last."""
    return sorted((ROOT / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)[-1:]


def check_names(file: Path, names: list[str]) -> None:
    """End the check where a file of the package is missing."""
    for wanted in SHIPPED:
        if not any(f"unisono/{wanted}" in name for name in names):
            raise SystemExit(f"{file.name} has no {wanted}")


def run(folder: Path, command: list[str], environment: dict[str, str]) -> None:
    """Run a command in a folder, and end the check if it fails."""
    print("$", " ".join(command[:6]), flush=True)
    subprocess.run(command, cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
