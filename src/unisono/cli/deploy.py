"""``unisono deploy``: a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.cli import deploy_owner, options
from unisono.cli.deploy_members import ServerOption
from unisono.cli.deploy_members import register as register_members
from unisono.cli.deploy_operation import register as register_operation
from unisono.cli.error_output import Commands
from unisono.cli.tables import make_console

app = typer.Typer(
    cls=Commands,
    suggest_commands=False,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Run a real federation over TLS.",
)
Directory = Annotated[Path, typer.Argument(metavar="[DIRECTORY]", hidden=True)]


def _ready() -> None:
    from unisono.engines.flower.environment import keep_quiet, require_flower

    require_flower()
    keep_quiet()


@app.command("init", no_args_is_help=True)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", hidden=True)],
    clients: Annotated[int, typer.Option(help="Size of the federation.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server, clients use the first; repeatable.")
    ] = None,
    port: Annotated[int, typer.Option(help="The server's port.", show_default=False)] = 9092,
    approve: Annotated[
        str, typer.Option(help="always, recipe-hash or each: whether owners approve recipes.", show_default=False)
    ] = "recipe-hash",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS, and anyone may join: for tests only.")] = False,
) -> None:
    """Make the directories of a federation.

    DIRECTORY gets a folder for the server, one to carry to each client, and
    the certificate authority's, to lock away. Clients wait until their owner
    approves a recipe, and from four clients on want secure aggregation.

    Example: unisono deploy init federation --clients 3 --host 127.0.0.1
    """
    _ready()
    from unisono.deploy.init import create_federation
    from unisono.deploy.policy_tables import strict_tables

    policy = strict_tables(clients, insecure, approve)
    create_federation(directory, clients, host or ["127.0.0.1"], port, insecure, policy)
    console = make_console()
    console.print(f"server:  {directory}/server", soft_wrap=True)
    console.print(f"clients: {directory}/client-0 ... client-{clients - 1}", soft_wrap=True)
    if insecure:
        console.print("warning: nothing is encrypted, and anyone who reaches the server may join", soft_wrap=True)


@app.command("server")
def server(directory: Directory = Path()) -> None:
    """Run the server of a federation until Ctrl-C.

    Example: unisono deploy server federation/server
    """
    _ready()
    from unisono.deploy.directories import ServerDirectory
    from unisono.deploy.processes import run_server

    found = ServerDirectory.open(directory)
    console = make_console()
    kind = "without TLS" if found.config.insecure else "with TLS"
    console.print(f"server on {found.config.host}:{found.config.port} {kind}, log in {found.path}/logs", soft_wrap=True)
    run_server(found)


@app.command("client")
def client(
    directory: Directory = Path(),
    data: Annotated[str | None, typer.Option(help="Folder of images, or .npz; remembered in client.toml.")] = None,
) -> None:
    """Run a client of a federation until Ctrl-C.

    Example: unisono deploy client federation/client-0 --data photos
    """
    _ready()
    from unisono.deploy.directories import ClientDirectory
    from unisono.deploy.processes import run_client

    found = ClientDirectory.open(directory)
    console = make_console()
    console.print(f"client {found.config.client_id} of {found.config.server}, log in {found.path}/logs", soft_wrap=True)
    run_client(found, data)


@app.command("run", no_args_is_help=True)
def run(
    reference: Annotated[str | None, typer.Argument(metavar="[RECIPE|METHOD]", hidden=True)] = None,
    server: ServerOption = Path(),
    resume: Annotated[str | None, typer.Option(help="Go on with this run from its last checkpoint.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run directory (run.name).")] = None,
    settings: options.Overrides = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start and return at once.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a recipe on the connected clients.

    Example: unisono deploy run simclr --server federation/server
    """
    _ready()
    from unisono.core.errors import UserError
    from unisono.deploy.directories import ServerDirectory
    from unisono.deploy.runs import find_run, follow, launch, prepare_run
    from unisono.runs.evaluation import PREFIX

    found = ServerDirectory.open(server)
    if (reference is None) == (resume is None):
        raise UserError("Give a recipe or method to run, or --resume RUN, one of the two.")
    path = (
        find_run(found, resume)
        if resume is not None
        else prepare_run(found.runs, found.config.num_clients, str(reference), settings or (), name)
    )
    console = make_console()
    try:
        number = launch(found, path)
    except UserError:
        if resume is None and not (path / "flower.json").exists():
            _remove(path)
        raise
    if detach:
        print(path)
        return

    def show(entry: dict[str, float]) -> None:
        if not quiet:
            words = [f"round {int(entry['round']) + 1}", f"{entry['answered']} of {entry['asked']} answered"]
            loss = entry.get("loss")
            words += [] if loss is None else [f"loss {loss:.4f}"]
            words += [f"{key.removeprefix(PREFIX)} {value:.4f}" for key, value in entry.items() if key.startswith(PREFIX)]
            console.print("  ".join(words), soft_wrap=True)

    status = follow(found, path, number, show)
    if status["status"] != "finished":
        reason = str(status.get("reason", "no reason given")).rstrip(".")
        again = f"Continue with 'unisono deploy run --resume {path.name} --server {server}'."
        raise UserError(f"The run ended after round {status['round']}: {reason}. {again}")
    print(path)


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


@app.command("stop")
def stop(
    directory: Directory = Path(),
    run: Annotated[str | None, typer.Option(help="Stop this run alone, not the server.")] = None,
) -> None:
    """Stop the server or the client of a directory, or a run.

    Example: unisono deploy stop federation/server
    """
    _ready()
    from unisono.core.errors import UserError
    from unisono.deploy.directories import SERVER_FILE, ServerDirectory
    from unisono.deploy.supervisor import stop_supervisor

    if run is not None:
        from unisono.deploy.runs import find_run, stop_run

        found = ServerDirectory.open(directory)
        stop_run(found, find_run(found, run))
        return
    directory = directory / "server" if (directory / "server" / SERVER_FILE).is_file() else directory
    if not stop_supervisor(directory.resolve()):
        raise UserError(f"Nothing runs in {directory}.")


@app.command("fetch", no_args_is_help=True)
def fetch(
    run: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    server: ServerOption = Path(),
    to: Annotated[Path | None, typer.Option(help="Where to put it; default runs/RUN.")] = None,
) -> None:
    """Copy a run and its model from the server's directory.

    The copy works with embed, cluster, export, evaluate and show.

    Example: unisono deploy fetch RUN --server federation/server
    """
    _ready()
    from unisono.deploy.directories import ServerDirectory
    from unisono.deploy.runs import fetch_run

    print(fetch_run(ServerDirectory.open(server), run, to or Path("runs") / Path(run).name))


deploy_owner.add_to(app)
register_members(app)
register_operation(app)
GROUPS = {
    "Set up": ("init", "join", "add", "accept"),
    "Run": ("server", "client", "run", "stop", "fetch"),
    "For the owner of a client": ("policy", "pending", "approve", "deny", "ledger", "audit"),
}
"""Commands by task; all others are for the operator."""
for registered in app.registered_commands:
    groups = [group for group, names in GROUPS.items() if registered.name in names]
    registered.rich_help_panel = groups[0] if groups else "For the operator"
