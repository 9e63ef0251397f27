"""``unisono embed``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import options
from unisono.cli.samples import chosen_on_error, note_unreadable
from unisono.cli.tables import make_console

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUFFIXES = (".npz", ".npy", ".parquet")


def embed(
    run: options.Run,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", hidden=True)],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help=".npz (default features.npz), .npy or .parquet.", show_default=False),
    ] = Path("features.npz"),
    on_error: options.OnError = None,
) -> None:
    """Turn images or series into features.

    RUN is a run directory; FILES are images, folders of images, or files of arrays (.npz with an array 'x', .npy, .parquet
    with a column of image bytes or of numbers). An .npz output holds
    'features' and 'files', a .parquet output the columns 'features' and 'file', an .npy output
    features alone; row 7 of the input a.npz is called a.npz#7.

    Example: unisono embed runs/demo samples.npz --output features.npz
    """
    import numpy as np

    from unisono.core.errors import UserError
    from unisono.loaded import load
    from unisono.runs.files import check_writable

    if output.suffix not in SUFFIXES:
        raise UserError(f"--output must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {output}.")
    check_writable(output)
    loaded = load(run)
    chosen = chosen_on_error(on_error)
    parts = [loaded.embedded(file, on_error=chosen) for file in files]
    note_unreadable([problem for part in parts for problem in part.problems])
    names = [name for part in parts for name in part.samples.names]
    features = np.concatenate([part.features.numpy() for part in parts])
    {".npz": _write_npz, ".npy": _write_npy, ".parquet": _write_parquet}[output.suffix](output, names, features)
    make_console().print(f"{len(names):,} rows of {features.shape[1]} features in {output}", soft_wrap=True)


def _write_npz(output: Path, names: list[str], features: NDArray[np.float32]) -> None:
    import io

    import numpy as np

    from unisono.runs.files import write_atomically

    content = io.BytesIO()
    np.savez_compressed(content, features=features, files=np.array(names))
    write_atomically(output, content.getvalue())


def _write_npy(output: Path, names: list[str], features: NDArray[np.float32]) -> None:
    import io

    import numpy as np

    from unisono.runs.files import write_atomically

    content = io.BytesIO()
    np.save(content, features)
    write_atomically(output, content.getvalue())


def _write_parquet(output: Path, names: list[str], features: NDArray[np.float32]) -> None:
    from unisono.core.errors import UserError
    from unisono.runs.files import write_atomically

    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Writing .parquet needs the extra 'hub': pip install 'unisono[hub]', or write .npz.") from error
    width = features.shape[1]
    column: Any = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.reshape(-1)), width)
    table = pyarrow.table({"file": pyarrow.array(names), "features": column})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    write_atomically(output, sink.getvalue().to_pybytes())
