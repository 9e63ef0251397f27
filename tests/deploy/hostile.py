"""A client that answers as the file ``attack`` says: ``python hostile.py CLIENT_DIRECTORY ATTACK_FILE``."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unisono.core.payload import Payload
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.processes import run_client
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.executor import serve_tasks
from unisono.engines.flower.messages import Request
from unisono.federation.client_turn import ClientResult

ATTACKS = ("nan", "huge", "raise")
KILL = "killed in a secure sum"


class HostileDesk(DeployedClient):
    """Spoils its answers, one attack per round."""

    attack: Path

    def answer(self, request: Request) -> ClientResult:
        answer = super().answer(request)
        if not self.attack.exists():
            return answer
        if self.attack.read_text() == KILL:
            return answer
        kind = ATTACKS[request.round % len(ATTACKS)]
        if kind == "raise":
            raise RuntimeError("no battery")
        return replace(answer, update=replace(answer.update, payload=spoiled(answer.update.payload, kind)))

    def sum_step(self, values: dict[str, Any]) -> tuple[dict[str, Any], Payload]:
        """Be killed after it has shared its secrets, and before its masked vector leaves."""
        if values["step"] == "masked" and self.attack.exists() and self.attack.read_text() == KILL:
            self.attack.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sum_step(values)


def spoiled(payload: Payload, kind: str) -> Payload:
    """A payload that no server should take."""
    group, tensors = next(iter(payload.groups.items()))
    name, tensor = next((name, tensor) for name, tensor in tensors.items() if tensor.is_floating_point())
    if kind == "nan":
        return payload.with_groups(**{group: {**tensors, name: torch.full_like(tensor, float("nan"))}})
    return payload.with_groups(**{group: {**tensors, name: torch.zeros(3 * 2**20)}})


def work(directory: ClientDirectory, attack: Path) -> None:
    torch.set_num_threads(1)
    handler = HostileDesk(directory)
    handler.attack = attack
    serve_tasks(make_client_app(lambda node_config: handler), f"127.0.0.1:{directory.config.port}", directory.secret)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(ClientDirectory.open(Path(sys.argv[3])), Path(sys.argv[2]))
    else:
        # The honest SuperNode, and this file in the place of the honest worker.
        run_client(ClientDirectory.open(Path(sys.argv[1])), worker=[sys.executable, __file__, "work", sys.argv[2]])
