"""A client's process that stays: it takes one task after the other from its SuperNode and answers with the app it was given.

Flower starts a new process for every message, which imports torch anew, and runs the code that came with the run. This one
keeps data, networks and imports between messages, and looks at no code but its own: the run's app bundle is not even unpacked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def serve_tasks(
    app: ClientApp,
    address: str,
    secret: Path,
    *,
    poll: float = 0.2,
    on_error: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Answers the tasks of a SuperNode until the process is ended, one after the other.

    Each task waits for its message in a thread of its own: when a server is killed, a message may stay half delivered for ever.

    Args:
        app: what answers.
        address: ``host:port`` of the SuperNode's runtime API, on this machine.
        secret: file of the secret that the SuperNode knows this process by.
        poll: seconds between two looks for a task.
        on_error: told when a task fails outside of the app.
    """
    auth = SuperExecAuthHttpInterceptor(master_secret=secret.read_bytes(), protected_methods=frozenset({ACQUIRE}))
    client = _connect(address, auth, "SuperExec")
    turn = threading.Lock()

    def work(token: str) -> None:
        try:
            _do(app, address, token, turn)
        except Exception as error:
            on_error(error)

    while True:
        acquired = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if acquired.HasField("task") and acquired.token:
            threading.Thread(target=work, args=(acquired.token,), name=f"task {acquired.task.task_id}", daemon=True).start()
        time.sleep(poll)


def _do(app: ClientApp, address: str, token: str, turn: threading.Lock) -> None:
    """One task: message in, answer out, an error out if the app raises."""
    client = _connect(address, RuntimeTokenHttpInterceptor(token), "flwr-clientapp")
    heartbeat = HeartbeatSender(lambda: _is_heard(client))
    heartbeat.start()
    context: Context | None = None
    status, details = SubStatus.FAILED, "the task failed"
    try:
        message, context = _pull(client)
        try:
            with turn:
                reply = app(message=message, context=context)
            status, details = SubStatus.COMPLETED, ""
        except Exception as error:
            details = f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(client, reply, context)
    finally:
        push_task_output(client=client, context=context, sub_status=status, details=details)
        heartbeat.stop()
        client.close()


def _pull(client: RuntimeHttpClient, seconds: float = 60.0) -> tuple[Message, Context]:
    """The message of a task; a task can be there a moment before its message."""
    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    deadline = time.monotonic() + seconds
    while not (found := client.PullMessages(PullAppMessagesRequest())).messages_list:
        if time.monotonic() > deadline:
            raise RuntimeError("the task has no message")
        time.sleep(0.1)
    node, tree = Node(node_id=context.node_id), found.message_object_trees[0]
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not carry its own
    return message, context


def _is_heard(client: RuntimeHttpClient) -> bool:
    """Tells the SuperNode that the task is being worked on; Flower's own ends the process where the task is gone."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.TransportError:
        return False
    except httpx.HTTPStatusError:
        pass
    return True


def _connect(address: str, auth: ProtobufClientInterceptor, component: str) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the loopback interface of one machine
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), auth],
        retry_invoker=make_simple_http_retry_invoker(),
    )
