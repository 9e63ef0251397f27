"""``unisono deploy status``, ``check``, ``pause``, ``backup`` and ``restore``: a federation in operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from unisono.cli.tables import make_console

Directory = Annotated[Path, typer.Argument(metavar="[DIRECTORY]", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the commands to ``unisono deploy``."""
    app.command("status")(status)
    app.command("check")(check)
    app.command("pause")(pause)
    app.command("backup", no_args_is_help=True)(backup)
    app.command("restore", no_args_is_help=True)(restore)


def _of_server(directory: Path) -> Path:
    from unisono.deploy.directories import SERVER_FILE

    return directory / "server" if (directory / "server" / SERVER_FILE).is_file() else directory


def status(directory: Directory = Path()) -> None:
    """Show processes, certificates, clients and runs of a server.

    Example: unisono deploy status federation/server
    """
    from unisono.engines.flower.environment import keep_quiet, require_flower

    require_flower()
    keep_quiet()
    from unisono.deploy.condition import condition
    from unisono.deploy.directories import ServerDirectory

    console = make_console()
    for line in condition(ServerDirectory.open(directory)):
        console.print(line, soft_wrap=True)


def check(
    directory: Directory = Path(),
    dry_round: Annotated[bool, typer.Option("--dry-round", help="Train on a few samples of the client as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Check a server or a client on its own machine.

    Looks at files, keys, certificates, members, port, clock, versions, disk,
    data, policy, ledger and audit. The exit code is 0 if all is well, 1 after
    warnings, 2 after errors.

    Example: unisono deploy check federation/client-0
    """
    from unisono.engines.flower.environment import keep_quiet, require_flower

    require_flower()
    keep_quiet()
    from unisono.deploy import checks
    from unisono.deploy.directories import CLIENT_FILE, ClientDirectory, ServerDirectory

    if (directory / CLIENT_FILE).is_file():
        client = ClientDirectory.open(directory)
        findings = [*checks.check_client(client), *([checks.dry_round(client)] if dry_round else [])]
    else:
        findings = list(checks.check_server(ServerDirectory.open(directory)))
    console = make_console()
    for one in findings:
        if as_json:
            print(json.dumps({"level": one.level, "subject": one.subject, "sentence": one.sentence}))
        else:
            console.print(f"{one.level:<8} {one.subject}: {one.sentence}", soft_wrap=True)
    worst = {finding.level for finding in findings}
    raise typer.Exit(2 if "error" in worst else 1 if "warning" in worst else 0)


def pause(
    directory: Directory = Path(),
    off: Annotated[bool, typer.Option("--off", help="Go on.")] = False,
) -> None:
    """Pause a server's runs, or a client, until --off.

    A paused server stops its runs after their last checkpoint and goes on with
    them by itself later. A paused client answers "not now", and nobody waits.

    Example: unisono deploy pause federation/client-0
    """
    from unisono.deploy.directories import CLIENT_FILE, PAUSED_FILE, ClientDirectory, ServerDirectory
    from unisono.deploy.runs import pause_runs

    is_client = (directory / CLIENT_FILE).is_file()
    path = ClientDirectory.open(directory).path if is_client else ServerDirectory.open(directory).path
    console = make_console()
    if off:
        (path / PAUSED_FILE).unlink(missing_ok=True)
        console.print(f"{directory} goes on", soft_wrap=True)
        return
    if is_client:
        (path / PAUSED_FILE).touch()
        console.print(f"{directory} answers nothing until 'unisono deploy pause {directory} --off'", soft_wrap=True)
        return
    names = pause_runs(ServerDirectory.open(directory))
    console.print(f"paused runs: {', '.join(names) or 'none'}", soft_wrap=True)


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)],
    to: Annotated[Path, typer.Option(help="The file to write, such as server.tar.gz.")],
    states: Annotated[bool, typer.Option("--states", help="Local states of a client's runs too.")] = False,
) -> None:
    """Write all that cannot be made again into one file.

    The file holds private keys: encrypt it before it leaves the machine. The
    server or client may run meanwhile.

    Example: unisono deploy backup federation/server --to server.tar.gz
    """
    from unisono.deploy.backup import back_up

    number = back_up(_of_server(directory).resolve(), to, states)
    make_console().print(f"{number} files in {to}, which holds private keys", soft_wrap=True)


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", hidden=True)],
    to: Annotated[Path, typer.Option(help="An empty directory.")],
) -> None:
    """Write the files of a backup into an empty directory.

    Check it with 'deploy check' before you start it. Never run a client from
    an older ledger than the one it had: answers since then would not count.

    Example: unisono deploy restore server.tar.gz --to federation/server
    """
    from unisono.deploy.backup import restore as put_back

    make_console().print(f"{put_back(source, to.resolve())} files in {to}; see 'unisono deploy check {to}'", soft_wrap=True)
