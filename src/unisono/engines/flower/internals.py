"""All that unisono uses of Flower beyond flwr.app, flwr.clientapp, flwr.serverapp and flwr.simulation.

No other module imports private flwr. ``reliance.RELIES_ON`` says what each name must look like and why it is needed. The
modules are imported where they are used: a client needs no SuperLink, and a server no SuperNode.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message

from unisono.core.errors import UserError
from unisono.engines.flower.door import TOKEN_HEADER
from unisono.engines.flower.handlers import LimitedUvicorn, only_own_replies, only_with_room, patient, seldom, uncounted
from unisono.engines.flower.long_poll import LongPoll

CLIENT_TASKS = "flwr-clientapp"
"""The kind of tasks that a SuperNode has for a client, by Flower's word for it."""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
HEARTBEAT_SECONDS = 10
"""Seconds between two signs of life of a SuperNode, Flower's least; it counts as offline after two of them."""
PARTS_FIRST, PARTS_MOST = 0.05, 0.5
"""Seconds between two looks for parts of a message that are still on their way: at first, and in the end."""


@dataclass(frozen=True)
class RegisteredNode:
    """A node that a SuperLink knows: its number, its public key as PEM, and Flower's word for its status."""

    node_id: int
    public_key: bytes
    status: str


class SuperLinkClient:
    """A connection to a SuperLink's Control API; every call may raise ``httpx.HTTPError``.

    Args:
        address: ``host:port``.
        certificate: of the authority that signed the SuperLink's, as PEM; None talks without TLS.
        token: what the SuperLink's door asks for.
    """

    def __init__(self, address: str, certificate: bytes | None, token: str | None = None) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=certificate is None,
            root_certificates=certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _TokenInterceptor(token)],
        )

    def nodes(self) -> list[RegisteredNode]:
        """All nodes that the SuperLink knows, unregistered ones too."""
        from flwr.proto.control_pb2 import ListNodesRequest

        listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [RegisteredNode(node.node_id, node.public_key, node.status) for node in listed]

    def register(self, public_key: bytes) -> None:
        """Admit the node with this public key."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        self._client.RegisterNode(RegisterNodeRequest(public_key=public_key))

    def unregister(self, node_id: int) -> None:
        """Turn a node away for good."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def start_run(self, app: Path, config: Mapping[str, bool | float | int | str]) -> int:
        """Start a run of the app in this directory and return Flower's number for it."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = build_fab_from_disk(app)
        bundle = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        request = StartRunRequest(fab=bundle, override_config=user_config_to_proto(dict(config)), federation="", app_spec="")
        return int(self._client.StartRun(request).run_id)

    def stop_run(self, run_id: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._client.StopRun(StopRunRequest(run_id=run_id))

    def run_status(self, run_id: int) -> tuple[str, str, str] | None:
        """Flower's status, sub-status and details of a run; None if it does not know the run."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
        status = found[run_id].status if run_id in found else None
        return None if status is None else (status.status, status.sub_status, status.details)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class _TokenInterceptor:
    """Header by which the SuperLink's door knows its operator."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        if self._token is not None:
            context.request.headers[TOKEN_HEADER.decode()] = self._token
        return call_next(context)


class TaskQueue:
    """The tasks that a SuperNode has for its client.

    Args:
        address: ``host:port`` of the SuperNode's Runtime API, on this machine.
        secret: what the SuperNode knows this process by.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE}))
        self._client = _connect(address, auth, "SuperExec")

    def acquire(self) -> str | None:
        """Take a task and return the token that it is worked on with; None if there is no task."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        acquired = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[CLIENT_TASKS]))
        return acquired.token if acquired.HasField("task") and acquired.token else None


class TaskSession:
    """A task under way; the SuperNode hears of it until ``close``.

    Args:
        address: ``host:port`` of the SuperNode's Runtime API.
        token: what ``TaskQueue.acquire`` returned.
    """

    def __init__(self, address: str, token: str) -> None:
        from flwr.supercore.heartbeat import HeartbeatSender
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        self._client = _connect(address, RuntimeTokenHttpInterceptor(token), CLIENT_TASKS)
        self._heartbeat = HeartbeatSender(self._is_heard)
        self._heartbeat.start()

    def pull(self, seconds: float = 60.0) -> tuple[Message, Context]:
        """Return the message of the task; a task can be there a moment before its message."""
        from flwr.common.serde import context_from_proto
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        context = context_from_proto(self._client.PullTaskInput(PullTaskInputRequest()).context)
        deadline = time.monotonic() + seconds
        while not (found := self._client.PullMessages(PullAppMessagesRequest())).messages_list:
            if time.monotonic() > deadline:
                raise RuntimeError("the task has no message")
            time.sleep(PARTS_FIRST)
        node, tree = Node(node_id=context.node_id), found.message_object_trees[0]
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._client.PullObject, node, context.run_id),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, node, context.run_id),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not carry its own
        return message, context

    def push(self, reply: Message, context: Context) -> None:
        """Send the reply."""
        from flwr.supernode.runtime.run_clientapp import push_message

        push_message(self._client, reply, context)

    def finish(self, context: Context | None, failure: str) -> None:
        """Tell the SuperNode that the task is done.

        Args:
            context: what ``pull`` returned, None if it did not.
            failure: why the task failed, empty if it did not.
        """
        from flwr.supernode.runtime.run_clientapp import push_task_output

        push_task_output(client=self._client, context=context, sub_status="failed" if failure else "completed", details=failure)

    def close(self) -> None:
        """End the heartbeat and the connection."""
        self._heartbeat.stop()
        self._client.close()

    def _is_heard(self) -> bool:
        """Tell the SuperNode that the task is being worked on; Flower's own ends the process where the task is gone."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        try:
            self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError:
            pass
        return True


def _connect(address: str, auth: Any, component: str) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the loopback interface of one machine
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), auth],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def serve_superlink(arguments: Sequence[str], guard: Callable[..., Any], has_room: Callable[[], bool] = lambda: True) -> None:
    """Run a SuperLink until the process is ended; a UserError, and no server, where it would be without its guard.

    Args:
        arguments: those of ``flower-superlink``.
        guard: ASGI middleware that stands before all of the SuperLink's APIs.
        has_room: whether the disk may take another object.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.superlink import main
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    command = sys.modules[flower_superlink.__module__]
    if not imports_late(flower_superlink, main.__name__, "create_app") or not hasattr(command, "uvicorn"):
        raise UserError(
            "The flwr that is installed builds its server in another way, so nothing would keep its Control API to this "
            "machine: install flwr 1.41."
        )
    make = main.create_app

    def create_guarded(*args: Any, **kwargs: Any) -> Any:
        app = make(*args, **kwargs)
        app.add_middleware(LongPoll)
        app.add_middleware(guard)  # the last one stands before all others
        return app

    main.create_app = create_guarded
    command.uvicorn = LimitedUvicorn(command.uvicorn)  # type: ignore[attr-defined]
    fleet_handlers.push_messages = only_own_replies(fleet_handlers.push_messages)
    fleet_handlers.push_object = only_with_room(fleet_handlers.push_object, has_room)
    # Both write to the data base at every request, also at those that only read, and wait for each other there.
    state: Any = SqlLinkState
    state.store_traffic = uncounted
    state._cleanup_expired_task_tokens = seldom(state._cleanup_expired_task_tokens)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def serve_supernode(arguments: Sequence[str], clock: Any) -> None:
    """Run a SuperNode until the process is ended.

    Args:
        arguments: those of ``flower-supernode``.
        clock: what it takes for the module ``time``; where this flwr sleeps in another way, it sleeps as it likes.
    """
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.servicer.runtime import runtime_handlers

    look_for_parts_soon()
    runtime_handlers.acquire_task = patient(runtime_handlers.acquire_task)
    if getattr(start_client_internal, "time", None) is time:
        start_client_internal.time = clock  # type: ignore[attr-defined]
    else:
        print("This flwr sleeps in another way: poll in client.toml has no effect.", file=sys.stderr, flush=True)
    for module in (heartbeat, fleet_http_connection):
        if hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL"):
            setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS)  # noqa: B010  (not exported)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def look_for_parts_soon() -> None:
    """Have this process look for the parts of a message soon again where Flower waits for seconds.

    A message can be seen before its parts have come. Flower's own looks are one second apart, and then two, four and eight.
    """
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects

    for function in (pull_objects, pull_and_inflate_object_from_tree):
        pauses = {"initial_backoff": PARTS_FIRST, "backoff_cap": PARTS_MOST, "max_tries_per_object": None}
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **pauses}


def imports_late(function: Callable[..., Any], module: str, name: str) -> bool:
    """Return whether the module of a function imports a name when it is called, not when it is imported itself."""
    own = function.__globals__
    source = inspect.getsource(sys.modules[function.__module__])
    return name not in own and f"from {module} import" in source and f"{name}(" in source
