"""The progress of a run: two bars and the latest numbers in a terminal, one plain line per round anywhere else."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from unisono.cli.progress_bars import bar_grid, can_redraw, start_bars
from unisono.cli.run_progress import RunProgress, duration
from unisono.config import Config
from unisono.core.errors import ClientError
from unisono.core.progress import listening
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import Callback, RoundRecord, ServerState

MOST_PROBES = 2
LINE = 80
"""Columns of a line, which the probes and their round should fit into."""


class Progress(Callback):
    """Display of a run's progress; a context manager that leaves the terminal as it was.

    Args:
        config: the run's.
        console: where it is shown.
        redrawn: whether bars are drawn again and again in one place; None: in a terminal.
    """

    def __init__(self, config: Config, console: Console, redrawn: bool | None = None) -> None:
        self.run = RunProgress(config.federation.rounds, config.local_training)
        self._console = console
        self._redrawn = can_redraw(console) if redrawn is None else redrawn
        self._live: Live | None = None
        self._silence = ExitStack()

    def __enter__(self) -> Progress:
        self._silence.enter_context(listening(lambda what, done, total: None))  # bars would be drawn over other lines
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """Take the bars away; what comes after the rounds tells on its own how far it is."""
        self._silence.close()
        if self._live is not None:
            self._live.stop()

    def on_round_start(self, round: int, num_clients: int) -> None:
        self.run.start_round(round, num_clients)
        if self._live is None and self._redrawn:
            self._live = start_bars(self._console, self._bars)

    def on_client_end(self, phase: str, stats: ClientStats) -> None:
        self.run.count_client(stats)

    def on_client_failure(self, failure: ClientError) -> None:
        self.run.count_failure()

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.run.end_round(record)
        if self._live is None or self.run.probed_after == self.run.rounds_done:
            self._console.print(self._line(record), soft_wrap=self._live is None, overflow="ellipsis", no_wrap=True)
        for note in record.notes:
            self._console.print(f"note: round {self.run.rounds_done}: {note}", soft_wrap=True)
        if self.run.rounds_done == self.run.num_rounds:
            self._end()

    def _line(self, record: RoundRecord) -> Text:
        """Return the line that sums up a round."""
        run = self.run
        width = len(str(run.num_rounds))
        words = [f"round {run.rounds_done:>{width}}/{run.num_rounds}"]
        words += [f"loss {run.loss:.4f}"] if run.loss is not None else []
        if record.num_answered < record.num_asked:
            words.append(f"{record.num_answered} of {record.num_asked} clients answered")
        if run.probed_after == run.rounds_done:
            words += _probe_words(run.probes)
        line = "  ".join(words)
        with_speed = "  ".join([line, *_speed_words(run)])
        return Text(with_speed if len(with_speed) <= LINE else line)

    def _bars(self) -> RenderableType:
        """Return bars for rounds and for the clients of this round, and a line of numbers."""
        run = self.run
        left = run.seconds_left
        clients = f"{run.clients_done}/{run.clients_asked}" if run.clients_asked else ""
        grid = bar_grid()
        part = run.clients_done / run.clients_asked if run.clients_asked else 0.0
        grid.add_row(
            "rounds",
            f"{run.rounds_done}/{run.num_rounds}",
            ProgressBar(total=run.num_rounds, completed=run.rounds_done + part),
            "" if left is None else f"{duration(left)} left" if left >= 1 else "finishing",
        )
        grid.add_row("clients", clients, ProgressBar(total=run.clients_asked or 1, completed=run.clients_done), "")
        return Group(grid, self._numbers())

    def _numbers(self) -> Text:
        run = self.run
        words = [f"loss {run.loss:.4f}"] if run.loss is not None else []
        words += _speed_words(run)
        if run.probes:
            words.append("  ".join(_probe_words(run.probes)) + f" (round {run.probed_after})")
        if run.num_failures:
            words.append(f"{run.num_failures} failed")
        return Text("  ".join(words), no_wrap=True, overflow="ellipsis")


def headline(config: Config) -> str:
    """Return a line or two that describe the run to come."""
    partition, cohort = config.partition, config.cohort
    split = f"{partition.num_clients} clients ({partition.scheme}"
    split += f", alpha {partition.alpha:g})" if partition.scheme.startswith("dirichlet") else ")"
    if partition.scheme == "natural":
        split = "clients as the data set has them"
    asked = "all" if cohort.participation is None else f"{cohort.participation:.0%} of"
    asked = asked if cohort.size is None else str(cohort.size)
    asked += f" of {len(set(cohort.only))}" if cohort.only else ""
    model = ("a fitting network" if config.model.backbone == "auto" else config.model.backbone) + (
        f" x {config.model.width:g}" if config.model.width != 1 else ""
    )
    rounds = "1 round" if config.federation.rounds == 1 else f"{config.federation.rounds} rounds"
    return (
        f"{config.method_name} on {config.data.dataset}, {split}\n"
        f"{rounds}, {asked} clients each, {model}, seed {config.run.seed}"
    )


def _speed_words(run: RunProgress) -> list[str]:
    speed = run.samples_per_second
    return [] if speed is None else [f"{speed:,.0f} samples/s"]


def _probe_words(probes: dict[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" for name, value in list(probes.items())[:MOST_PROBES]]
