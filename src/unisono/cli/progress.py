"""The progress of a run: two bars and the latest numbers in a terminal, one plain line per round anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from unisono.cli.bars import bar_grid, can_redraw, start_bars
from unisono.cli.meter import Meter, duration
from unisono.config import Config
from unisono.core.errors import ClientError
from unisono.federation.rounds import Observer, RoundRecord, State
from unisono.federation.worker import Report

MOST_PROBES = 4
"""As many probes as fit into a line of 80 columns."""


class Progress(Observer):
    """Shows where a run stands; a context manager that leaves the terminal as it was.

    Args:
        config: the run's.
        console: where it is shown.
        redrawn: whether bars are drawn again and again in one place; None: in a terminal.
    """

    def __init__(self, config: Config, console: Console, redrawn: bool | None = None) -> None:
        self.meter = Meter(config.federation.rounds, config.local_training)
        self._console = console
        self._redrawn = can_redraw(console) if redrawn is None else redrawn
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def on_round_start(self, round: int, num_clients: int) -> None:
        self.meter.start_round(round, num_clients)
        if self._live is None and self._redrawn:
            self._live = start_bars(self._console, self._bars)

    def on_client(self, phase: str, report: Report) -> None:
        self.meter.count_client(report)

    def on_failure(self, failure: ClientError) -> None:
        self.meter.count_failure()

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        self.meter.end_round(record)
        if self._live is None or self.meter.probed_after == self.meter.rounds_done:
            self._console.print(self._line(record), soft_wrap=self._live is None, overflow="ellipsis", no_wrap=True)
        for note in record.notes:
            self._console.print(f"note: round {self.meter.rounds_done}: {note}", soft_wrap=True)

    def _line(self, record: RoundRecord) -> Text:
        """What a round came to."""
        meter = self.meter
        width = len(str(meter.num_rounds))
        words = [f"round {meter.rounds_done:>{width}}/{meter.num_rounds}"]
        words += [f"loss {meter.loss:.4f}"] if meter.loss is not None else []
        if record.num_answered < record.num_asked:
            words.append(f"{record.num_answered} of {record.num_asked} clients answered")
        if meter.probed_after == meter.rounds_done:
            words += _probe_words(meter.probes)
        words += _speed_words(meter)
        return Text("  ".join(words))

    def _bars(self) -> RenderableType:
        """Bars for rounds and for the clients of this round, and a line of numbers."""
        meter = self.meter
        left = meter.seconds_left
        clients = f"{meter.clients_done}/{meter.clients_asked}" if meter.clients_asked else ""
        grid = bar_grid()
        part = meter.clients_done / meter.clients_asked if meter.clients_asked else 0.0
        grid.add_row(
            "rounds",
            f"{meter.rounds_done}/{meter.num_rounds}",
            ProgressBar(total=meter.num_rounds, completed=meter.rounds_done + part),
            "" if left is None else f"{duration(left)} left" if left >= 1 else "finishing",
        )
        grid.add_row("clients", clients, ProgressBar(total=meter.clients_asked or 1, completed=meter.clients_done), "")
        return Group(grid, self._numbers())

    def _numbers(self) -> Text:
        meter = self.meter
        words = [f"loss {meter.loss:.4f}"] if meter.loss is not None else []
        words += _speed_words(meter)
        if meter.probes:
            words.append("  ".join(_probe_words(meter.probes)) + f" (round {meter.probed_after})")
        if meter.num_failures:
            words.append(f"{meter.num_failures} failed")
        return Text("  ".join(words), no_wrap=True, overflow="ellipsis")


def headline(config: Config) -> str:
    """What is about to run, in a line or two."""
    partition, cohort = config.partition, config.cohort
    split = f"{partition.num_clients} clients ({partition.scheme}"
    split += f", alpha {partition.alpha:g})" if partition.scheme.startswith("dirichlet") else ")"
    if partition.scheme == "natural":
        split = "clients as the data set has them"
    asked = "all" if cohort.participation is None else f"{cohort.participation:.0%} of"
    asked = asked if cohort.size is None else str(cohort.size)
    model = f"{config.model.backbone}" + (f" x {config.model.width:g}" if config.model.width != 1 else "")
    return (
        f"{config.method_name} on {config.data.dataset}, {split}\n"
        f"{config.federation.rounds} rounds, {asked} clients each, {model}, seed {config.run.seed}"
    )


def _speed_words(meter: Meter) -> list[str]:
    speed = meter.samples_per_second
    return [] if speed is None else [f"{speed:,.0f} samples/s"]


def _probe_words(probes: dict[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" for name, value in list(probes.items())[:MOST_PROBES]]
