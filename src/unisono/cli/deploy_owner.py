"""``unisono deploy`` for the owner of a client: policy, approvals, ledger, audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli.tables import make_console

if TYPE_CHECKING:
    from unisono.deploy.chain import Chain, Line
    from unisono.deploy.directories import ClientDirectory

Directory = Annotated[Path, typer.Argument(metavar="[DIRECTORY]", hidden=True)]
Wanted = Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)]
Hash = Annotated[str, typer.Argument(metavar="HASH", hidden=True)]


def _opened(directory: Path) -> ClientDirectory:
    from unisono.deploy.directories import ClientDirectory
    from unisono.engines.flower.environment import keep_quiet, require_flower

    require_flower()
    keep_quiet()
    return ClientDirectory.open(directory)


def policy(
    directory: Directory = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print the keys and their values.")] = False,
) -> None:
    """Show what a client's owner allows, in sentences.

    The hash at the end goes into every answer, and into the privacy.json of
    every run.

    Example: unisono deploy policy federation/client-0
    """
    found = _opened(directory)
    from unisono.deploy.policy import fingerprint
    from unisono.deploy.policy_text import NOT_PREVENTED, sentences

    rules = found.config
    if as_json:
        tables = {name: table.model_dump(mode="json") for name, table in rules.tables.items()}
        print(json.dumps({**tables, "hash": rules.fingerprint}, indent=1))
        return
    console = make_console()
    for table, lines in sentences(rules).items():
        console.print(f"[{table}]")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True, markup=False)
    console.print(NOT_PREVENTED, soft_wrap=True, markup=False)
    console.print("keys of the clients:")
    for client, key in sorted(found.keys.items()):
        console.print(f"  client {client}: {fingerprint(key)}", soft_wrap=True)
    console.print(f"policy {rules.fingerprint}", soft_wrap=True)


def pending(directory: Directory = Path()) -> None:
    """Show the recipes that wait for a client's owner.

    Example: unisono deploy pending federation/client-0
    """
    found = _opened(directory)
    from unisono.deploy.approvals import SHOWN, Approvals

    approvals, console = Approvals(found), make_console()
    waiting = approvals.waiting()
    for entry in waiting:
        masked = "with" if entry["masked"] else "without"
        console.print(
            f"{entry['recipe'][:SHOWN]}  {entry['method']}, {entry['rounds']} rounds, {masked} masks",
            soft_wrap=True,
            markup=False,
        )
        for group, (reveals, reduced) in entry["leaves"].items():
            console.print(f"  {group}: {reveals}, reduced by {reduced}", soft_wrap=True, markup=False)
        for line in approvals.differences(entry["config"]):
            console.print(f"  differs from the last approved one in {line}", soft_wrap=True, markup=False)
    if not waiting:
        console.print("no recipe waits")


def approve(
    directory: Wanted,
    recipe: Hash,
    runs: Annotated[int | None, typer.Option(help="So many runs; default as allow.approve says.", show_default=False)] = None,
    until: Annotated[str | None, typer.Option(help="Last day, such as 2027-01-31.")] = None,
) -> None:
    """Let a recipe run on a client.

    HASH is what 'unisono deploy pending' shows, or its first digits.

    Example: unisono deploy approve federation/client-0 3f9a
    """
    found = _opened(directory)
    from unisono.deploy.approvals import SHOWN, Approvals

    print(f"approved {Approvals(found).decide(recipe, 'approve', runs, until)[:SHOWN]}")


def deny(directory: Wanted, recipe: Hash) -> None:
    """Refuse a recipe for good, also one that was approved.

    HASH is what 'unisono deploy pending' shows, or its first digits.

    Example: unisono deploy deny federation/client-0 3f9a
    """
    found = _opened(directory)
    from unisono.deploy.approvals import SHOWN, Approvals

    print(f"denied {Approvals(found).decide(recipe, 'deny')[:SHOWN]}")


def ledger(
    directory: Directory = Path(),
    reset: Annotated[bool, typer.Option("--reset", help="Put a damaged ledger aside and begin a new one.")] = False,
    spent_epsilon: Annotated[float | None, typer.Option(help="With --reset: epsilon that counts as spent.")] = None,
) -> None:
    """Show what a client has given so far, over all runs.

    Example: unisono deploy ledger federation/client-0
    """
    found = _opened(directory)
    from unisono.core.errors import UserError
    from unisono.deploy.ledger import Ledger, reset_ledger

    if reset != (spent_epsilon is not None):
        raise UserError("--reset and --spent-epsilon go together: what was spent is never forgotten.")
    console = make_console()
    if spent_epsilon is not None:
        console.print(f"the old ledger is {reset_ledger(found, spent_epsilon)}", soft_wrap=True)
    budget, book = found.config.budget, Ledger(found)
    for word, spent, limit in (("answers", book.rounds, budget.max_rounds), ("runs", len(book.runs()), budget.max_runs)):
        console.print(f"{word}: {spent}{'' if limit is None else f' of {limit}'}")
    epsilon = book.epsilon(budget.delta)
    limit_text = "" if budget.max_epsilon is None else f" of {budget.max_epsilon:g}"
    console.print(f"epsilon of updates: {epsilon:.4g}{limit_text} at delta {budget.delta:g}, by this client's own noise")
    centroids, delta = book.centroid_epsilon
    if centroids:
        console.print(f"epsilon of noisy centroids: {centroids:.4g} at delta {delta:.3g}")
    console.print(f"ledger {book.chain.head[0]} lines, head {book.chain.head[1]}", soft_wrap=True)


def audit(
    directory: Directory = Path(),
    run: Annotated[str | None, typer.Option(help="Only lines of this run, by the first characters of its id.")] = None,
    last: Annotated[int, typer.Option(min=0, help="So many lines from the end; 0 for all.")] = 20,
    against: Annotated[Path | None, typer.Option(help="Compare with the privacy.json of a run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print whole lines.")] = False,
) -> None:
    """Verify and print what left a client, or what was done to a server.

    Example: unisono deploy audit federation/client-0
    """
    from unisono.deploy.directories import SERVER_FILE

    if (directory / SERVER_FILE).is_file():
        from unisono.deploy.server_audit import sentence, server_chain

        chain = server_chain(directory)
        _show(chain, chain.lines, sentence, last, as_json)
        return
    found = _opened(directory)
    from unisono.deploy.audit import Audit
    from unisono.deploy.ledger import Ledger

    books = Audit(found)
    books.verify(Ledger(found), against)
    chosen = [line for line in books.chain.lines if run is None or str(line.get("run")).startswith(run)]
    _show(books.chain, chosen, books.sentence, last, as_json)


def _show(chain: Chain, chosen: list[Line], sentence: Callable[[Line], str], last: int, as_json: bool) -> None:
    """Print lines of a list that was verified, and its head."""
    shown = chosen[-last:] if last else chosen
    console = make_console()
    for line in shown:
        if as_json:
            print(json.dumps(line))
        else:
            console.print(sentence(line), soft_wrap=True, markup=False, highlight=False)
    if not as_json:
        number, head = chain.head
        hidden = f", {len(chosen) - len(shown)} earlier ones not shown" if len(shown) < len(chosen) else ""
        console.print(f"verified: {number} lines, head {head}{hidden}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands of an owner to those of ``unisono deploy``."""
    for command in (policy, pending, ledger, audit):
        app.command(command.__name__)(command)
    app.command("approve", no_args_is_help=True)(approve)
    app.command("deny", no_args_is_help=True)(deny)
