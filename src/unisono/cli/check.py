"""``unisono check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options

if TYPE_CHECKING:
    from unisono.testing import CheckResult

WIDTH = 28


def check(
    method: Annotated[str, typer.Argument(metavar="METHOD", hidden=True)],
    only: Annotated[list[str] | None, typer.Option(help="Run this check only; repeatable.", metavar="CHECK")] = None,
    set: options.Overrides = None,
) -> None:
    """Check that a method keeps the contract.

    METHOD is a name from 'unisono list methods', a file such as my_method.py, or package.module:NAME. Six clients with random
    images run it many times: with other seeds, with worker processes, with a client that fails, resumed from a checkpoint.

    Example: unisono check simclr
    """
    from unisono.core.config import parse_overrides
    from unisono.testing import check_method

    results = check_method(method, options=parse_overrides(set or ()), only=only or (), on_result=_print)
    failed = [result for result in results if not result.passed]
    seconds = sum(result.seconds for result in results)
    print(f"\n{len(results) - len(failed)} of {len(results)} checks passed in {seconds:.0f} s.")
    if failed:
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    outcome, text = ("ok", result.summary) if result.passed else ("FAILED", result.message)
    print(f"{outcome:<7}{result.name:<{WIDTH}}{text}", flush=True)
