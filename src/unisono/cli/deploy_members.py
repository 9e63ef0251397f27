"""``unisono deploy join``, ``add``, ``accept``, ``remove``, ``rotate`` and ``authority``: who is a member, by which key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli.tables import make_console

if TYPE_CHECKING:
    from unisono.deploy.certificates import Authority

ServerOption = Annotated[Path, typer.Option("--server", help="The server's directory.")]
AuthorityOption = Annotated[
    Path | None, typer.Option("--authority", help="The authority's directory; default: beside the server's.")
]
Fingerprint = Annotated[str | None, typer.Option("--fingerprint", help="What the other side has read to you.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``unisono deploy``."""
    for command in (join, add, accept, remove, rotate, authority):
        app.command(command.__name__, no_args_is_help=True)(command)


def _open_authority(path: Path | None, server: Path) -> Authority:
    from unisono.deploy.certificates import Authority

    return Authority.open(path or server.parent / "authority")


def join(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)],
    name: Annotated[str, typer.Option(help="Name of your site, for the operator.")] = "",
) -> None:
    """Make the key of a new client on its own machine.

    DIRECTORY gets the key, which stays, and request.json, to send to the
    operator. Read the fingerprint to the operator by telephone.

    Example: unisono deploy join client --name hospital-7
    """
    from unisono.deploy.joining import REQUEST_FILE
    from unisono.deploy.joining import join as make

    console = make_console()
    console.print(f"fingerprint: {make(directory, name)}", soft_wrap=True)
    console.print(f"send to the operator: {directory / REQUEST_FILE}", soft_wrap=True)


def add(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", hidden=True)],
    server: ServerOption = Path(),
    authority: AuthorityOption = None,
    fingerprint: Fingerprint = None,
    host: Annotated[str | None, typer.Option(help="Name or address by which the client reaches the server.")] = None,
    at_once: Annotated[bool, typer.Option("--at-once", help="Refuse the site's former key now: it was stolen.")] = False,
) -> None:
    """Add a client, or put its new key in force.

    REQUEST is the file of 'deploy join' or 'deploy rotate'. No other client
    changes anything: the next run brings them the new list.

    Example: unisono deploy add request.json --server federation/server --fingerprint SHA256:nThbg6k...
    """
    from unisono.core.errors import UserError
    from unisono.deploy.directories import ServerDirectory
    from unisono.deploy.joining import add as put
    from unisono.deploy.joining import authority_fingerprint
    from unisono.deploy.runs import admit_members

    if fingerprint is None:
        raise UserError("--fingerprint is required: have the site's owner read to you what 'unisono deploy join' has shown.")
    found = ServerDirectory.open(server)
    signer = _open_authority(authority, found.path)
    client, path = put(found, signer, request, fingerprint, host, at_once)
    now = admit_members(ServerDirectory.open(server))
    console = make_console()
    console.print(f"client {client} is a member {'from now on' if now else 'when the server starts'}", soft_wrap=True)
    console.print(f"send to the site: {path}", soft_wrap=True)
    console.print(f"fingerprint of the authority: {authority_fingerprint(signer.certificate)}", soft_wrap=True)


def accept(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)],
    welcome: Annotated[Path, typer.Argument(metavar="WELCOME", hidden=True)],
    fingerprint: Fingerprint = None,
) -> None:
    """Put the operator's answer in force on a client.

    WELCOME is the file that 'deploy add' wrote. A client that runs takes its
    new key at once.

    Example: unisono deploy accept client welcome-7.json --fingerprint SHA256:nThbg6k...
    """
    from unisono.deploy.joining import accept as take

    client = take(directory, welcome, fingerprint)
    make_console().print(f"{directory} is client {client}; see 'unisono deploy check {directory}'", soft_wrap=True)


def remove(
    client: Annotated[int, typer.Argument(metavar="CLIENT", hidden=True)],
    server: ServerOption = Path(),
    authority: AuthorityOption = None,
) -> None:
    """Turn a client away for good.

    CLIENT is its number, which no other gets. Its key is no longer accepted;
    a run that goes on does so without it. The other clients learn of it with
    the next run, from a list that the authority signs.

    Example: unisono deploy remove 2 --server federation/server
    """
    from unisono.core.errors import UserError
    from unisono.deploy.directories import ServerDirectory
    from unisono.deploy.joining import remove as take_out
    from unisono.deploy.runs import admit_members

    found = ServerDirectory.open(server)
    try:
        signer = _open_authority(authority, found.path)
    except UserError:
        if authority is not None:
            raise
        signer = None  # the authority is locked away: the server acts at once, the list follows
    told = take_out(found, client, signer)
    now = admit_members(ServerDirectory.open(server))
    console = make_console()
    console.print(f"client {client} is turned away {'from now on' if now else 'when the server starts'}", soft_wrap=True)
    if not told:
        console.print("warning: the other clients do not know: repeat this with --authority DIRECTORY", soft_wrap=True)


def rotate(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)],
    authority: AuthorityOption = None,
    days: Annotated[int, typer.Option(help="Days that a server's certificate holds.", min=1, max=825)] = 365,
) -> None:
    """Change the key of a client, or the certificate of a server.

    On a client this makes a new key and request.json for the operator; the
    key so far stays in force until 'deploy accept'. On a server it needs the
    authority, and restarts the server if it runs; its runs go on.

    Example: unisono deploy rotate federation/server
    """
    from unisono.deploy.certificates import expiry
    from unisono.deploy.directories import CLIENT_FILE, ClientDirectory, ServerDirectory
    from unisono.deploy.joining import REQUEST_FILE, rotate_certificate, rotate_key

    console = make_console()
    if (directory / CLIENT_FILE).is_file():
        console.print(f"fingerprint: {rotate_key(ClientDirectory.open(directory))}", soft_wrap=True)
        console.print(f"send to the operator: {directory / REQUEST_FILE}", soft_wrap=True)
        return
    found = ServerDirectory.open(directory)
    rotate_certificate(found, _open_authority(authority, found.path), days)
    end, _ = expiry(found.path / "server.crt")
    console.print(f"the server's certificate holds until {end:%Y-%m-%d}", soft_wrap=True)


def authority(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)],
    server: ServerOption = Path(),
    old: AuthorityOption = None,
    finish: Annotated[bool, typer.Option("--finish", help="Trust the new authority alone, and restart the server.")] = False,
) -> None:
    """Replace the federation's certificate authority.

    DIRECTORY is for the new one. The clients hear of it with the next run and
    trust both until --finish. A client that has heard of nothing by then
    needs 'deploy add' and 'deploy accept' with the new fingerprint.

    Example: unisono deploy authority new-authority --server federation/server --authority authority
    """
    from unisono.deploy.authority_change import begin_change, finish_change
    from unisono.deploy.certificates import Authority
    from unisono.deploy.directories import ServerDirectory
    from unisono.deploy.joining import authority_fingerprint
    from unisono.deploy.supervisor import restart_tasks

    console, found = make_console(), ServerDirectory.open(server)
    if finish:
        finish_change(found, Authority.open(directory))
        console.print("the new authority is trusted alone, and the server has a certificate of it", soft_wrap=True)
        return
    new = begin_change(found, _open_authority(old, found.path), directory)
    restart_tasks(found.path)
    console.print(f"fingerprint of the new authority: {authority_fingerprint(new.certificate)}", soft_wrap=True)
    console.print("both are trusted; after the next run on all clients call this again with --finish", soft_wrap=True)
