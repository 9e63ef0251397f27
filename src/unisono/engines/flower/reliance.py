"""Private names of Flower that unisono uses: what each must look like, and why it is needed.

``tests/engines/flower/test_internals.py`` compares the table with the flwr that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reliance:
    """A private name of Flower that unisono uses.

    Args:
        parameters: of a function, all of them; of a protobuf message, the fields that are used; None for a module's variable.
        reason: why the name is needed, and no public one does.
        breaks: what no longer works without it.
    """

    parameters: tuple[str, ...] | None
    reason: str
    breaks: str


def _needed(reason: str, breaks: str, names: Mapping[str, str | None]) -> dict[str, Reliance]:
    return {name: Reliance(None if words is None else tuple(words.split()), reason, breaks) for name, words in names.items()}


_CONNECT = "server_address insecure root_certificates interceptors retry_invoker"
RELIES_ON: dict[str, Reliance] = {
    **_needed(
        "the command flwr knows neither the door's token nor which node is which client's; a call of it costs over a second",
        "'unisono deploy server' admits no clients; deploy status, remove and run find no server",
        {
            "flwr.supercore.control.ControlHttpClient.from_server_address": _CONNECT,
            "flwr.supercore.control.ControlHttpClient.ListNodes": "self request",
            "flwr.supercore.control.ControlHttpClient.RegisterNode": "self request",
            "flwr.supercore.control.ControlHttpClient.UnregisterNode": "self request",
            "flwr.supercore.control.ControlHttpClient.ListRuns": "self request",
            "flwr.supercore.control.ControlHttpClient.StartRun": "self request",
            "flwr.supercore.control.ControlHttpClient.StopRun": "self request",
            "flwr.supercore.control.ControlHttpClient.close": "self",
            "flwr.proto.control_pb2.ListNodesRequest": "",
            "flwr.proto.control_pb2.ListNodesResponse": "nodes_info",
            "flwr.proto.control_pb2.RegisterNodeRequest": "public_key",
            "flwr.proto.control_pb2.UnregisterNodeRequest": "node_id",
            "flwr.proto.control_pb2.ListRunsRequest": "run_id",
            "flwr.proto.control_pb2.ListRunsResponse": "run_dict",
            "flwr.proto.control_pb2.StartRunRequest": "fab override_config federation app_spec",
            "flwr.proto.control_pb2.StopRunRequest": "run_id",
            "flwr.cli.build.build_fab_from_disk": "app",
            "flwr.common.serde.fab_to_proto": "fab",
            "flwr.common.serde.user_config_to_proto": "user_config",
            "flwr.supercore.fab.Fab": "hash_str content verifications",
        },
    ),
    **_needed(
        "a SuperLink and a SuperNode refuse requests that do not name the version of flwr",
        "neither the server nor a client can talk to Flower",
        {"flwr.supercore.interceptors.RuntimeVersionHttpInterceptor": "component_name"},
    ),
    **_needed(
        "Flower starts a process per message and runs the code that the server sent; ours stays and runs its own code",
        "clients of a federation do not answer",
        {
            "flwr.supercore.runtime.RuntimeHttpClient.from_server_address": _CONNECT,
            "flwr.supercore.runtime.RuntimeHttpClient.AcquireTask": "self request",
            "flwr.supercore.runtime.RuntimeHttpClient.PullTaskInput": "self request",
            "flwr.supercore.runtime.RuntimeHttpClient.PullMessages": "self request",
            "flwr.supercore.runtime.RuntimeHttpClient.PullObject": "self request",
            "flwr.supercore.runtime.RuntimeHttpClient.ConfirmMessageReceived": "self request",
            "flwr.supercore.runtime.RuntimeHttpClient.SendTaskHeartbeat": "self request",
            "flwr.supercore.runtime.RuntimeHttpClient.close": "self",
            "flwr.proto.runtime_pb2.AcquireTaskRequest": "supported_task_types",
            "flwr.proto.runtime_pb2.PullTaskInputRequest": "",
            "flwr.proto.runtime_pb2.PullAppMessagesRequest": "",
            "flwr.proto.runtime_pb2.SendTaskHeartbeatRequest": "",
            "flwr.proto.node_pb2.Node": "node_id",
            "flwr.common.serde.context_from_proto": "context_proto",
            "flwr.supercore.heartbeat.HeartbeatSender": "heartbeat_fn",
            "flwr.supercore.heartbeat.HeartbeatSender.start": "self",
            "flwr.supercore.heartbeat.HeartbeatSender.stop": "self",
            "flwr.supercore.inflatable.inflatable_protobuf_utils.make_pull_object_fn_protobuf": (
                "pull_object_protobuf node run_id"
            ),
            "flwr.supercore.inflatable.inflatable_protobuf_utils.make_confirm_message_received_fn_protobuf": (
                "confirm_message_received_protobuf node run_id"
            ),
            "flwr.supercore.inflatable.inflatable_utils.pull_and_inflate_object_from_tree": (
                "object_tree pull_object_fn confirm_object_received_fn return_type max_concurrent_pulls max_time "
                "max_tries_per_object initial_backoff backoff_cap"
            ),
            "flwr.supercore.interceptors.RuntimeTokenHttpInterceptor": "token",
            "flwr.supercore.interceptors.SuperExecAuthHttpInterceptor": "master_secret protected_methods",
            "flwr.supercore.retry.make_simple_http_retry_invoker": "",
            "flwr.supernode.runtime.run_clientapp.push_message": "client message context",
            "flwr.supernode.runtime.run_clientapp.push_task_output": "client context sub_status details",
        },
    ),
    **_needed(
        "Flower asks nobody who he is on its Control and Runtime API and has no option to keep them to the server's machine",
        "'unisono deploy server' refuses to start, since anyone who reaches its port could start runs",
        {"flwr.superlink.main.create_app": "config superlink_lifespan_class", "flwr.superlink.cli.flower_superlink": ""},
    ),
    **_needed(
        "Flower takes messages that a node sends in the name of the server or of others, and has no limit for its disk",
        "a node can act as the server towards other nodes, and can fill the server's disk",
        {
            "flwr.superlink.servicer.fleet.fleet_handlers.push_messages": "request state",
            "flwr.superlink.servicer.fleet.fleet_handlers.push_object": "request state",
        },
    ),
    **_needed(
        "a SuperNode says every 30 s that it lives, and has no option for it",
        "a client that died is noticed after a minute, not after 20 s",
        {
            "flwr.supercore.heartbeat.HEARTBEAT_DEFAULT_INTERVAL": None,
            "flwr.supernode.fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL": None,
        },
    ),
    **_needed(
        "a SuperNode rests for 3 s whenever there is nothing to do and has no option for it",
        "every phase of a round on a federation begins up to 3 s late",
        {"flwr.supernode.start_client_internal.time": None, "flwr.supernode.cli.flower_supernode": ""},
    ),
    **_needed(
        "whoever sees a message before its parts have come looks for them after 1, 2, 4 and 8 s, and there is no option for it",
        "every message of a federation, of which a masked sum has five per client, takes seconds longer",
        {
            "flwr.supercore.inflatable.inflatable_utils.pull_objects": (
                "object_ids pull_object_fn max_concurrent_pulls max_time max_tries_per_object initial_backoff backoff_cap"
            )
        },
    ),
    **_needed(
        "Flower's server writes to its data base at every request, also at those that only read",
        "requests of many nodes wait for each other, and a masked sum, with its five messages per client, takes seconds longer",
        {
            "flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState.store_traffic": "self run_id bytes_sent bytes_recv",
            "flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState._cleanup_expired_task_tokens": "self",
        },
    ),
    **_needed(
        "a SuperNode answers its client's process at once that there is no task",
        "that process asks fifty times a second",
        {"flwr.supernode.servicer.runtime.runtime_handlers.acquire_task": "request state"},
    ),
}
