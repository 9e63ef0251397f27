"""The progress of a study: two bars in a terminal, one plain line per run anywhere else, and the time left for the whole."""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from unisono.cli.progress_bars import bar_grid, can_redraw, start_bars
from unisono.cli.run_progress import RunProgress, duration
from unisono.config import Config
from unisono.core.progress import listening
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.runs.directory import RunDirectory
from unisono.runs.files import JsonLines
from unisono.studies.grid import Cell
from unisono.studies.history import History, is_relative
from unisono.studies.results import number
from unisono.studies.runner import StudyCallback
from unisono.studies.study import Study


class Pace:
    """Estimate of the time left: every run takes as long as those of its variant, or of all variants, took so far.

    A run that this process made counts with the time that passed. What another made is known by its logs alone, which lack the
    preparation and the end: these are taken to last as long as they do here.

    Args:
        cells: all of the study, finished ones included: these tell how long runs take.
        jobs: how many run at a time.
    """

    def __init__(self, cells: Iterable[Cell], jobs: int = 1) -> None:
        self._jobs = jobs
        self._left = list(cells)
        self._passed: dict[Cell, float] = {}
        self._logged: dict[Cell, float] = {}
        self._forget_finished()

    def finish(self, cell: Cell, seconds: float | None) -> None:
        """Record that a cell is done; seconds is None where it failed and says nothing about the others."""
        self._left = [other for other in self._left if other != cell]
        if seconds is not None:
            self._logged[cell] = _logged_seconds(cell)
            # A run that went on from a checkpoint took longer than what passed now.
            self._passed[cell] = max(seconds, self._logged[cell])

    def seconds_left(self, current: Cell | None = None, current_left: float | None = None) -> float | None:
        """Return the seconds that all remaining cells take; None while nothing is known.

        Args:
            current: the cell that is running.
            current_left: what it says about itself.
        """
        self._forget_finished()
        free = [0.0] * self._jobs  # when each process has done what it was given; a heap
        for cell in self._left:
            seconds = current_left if cell == current else None
            if seconds is None:
                whole = self._estimate(cell)
                if whole is None:
                    return None
                seconds = max(0.0, whole - _logged_seconds(cell))
            heapq.heapreplace(free, free[0] + seconds)
        return max(free)

    def _forget_finished(self) -> None:
        """Remove what is finished, by an earlier call or by another process."""
        finished = {cell for cell in self._left if RunDirectory(cell.path).finished}
        self._left = [cell for cell in self._left if cell not in finished]
        self._logged |= {cell: _logged_seconds(cell) for cell in finished}

    def _estimate(self, cell: Cell) -> float | None:
        """Return the seconds of a whole cell; untrained ones say nothing about others, nor do others about them."""
        rest = [passed - self._logged[other] for other, passed in self._passed.items() if not other.untrained]
        unlogged = statistics.fmean(rest) if rest else 0.0
        if cell.untrained:
            own = [passed for other, passed in self._passed.items() if other.untrained]
            return statistics.fmean(own) if own else unlogged if self._logged else None
        known = {
            other: self._passed.get(other, logged + unlogged) for other, logged in self._logged.items() if not other.untrained
        }
        alike = [seconds for other, seconds in known.items() if other.variant == cell.variant]
        return statistics.fmean(alike or known.values()) if known else None


class StudyProgress(StudyCallback, Callback):
    """Display of a study's progress; a context manager that leaves the terminal as it was.

    Args:
        cells: those that this call is about.
        study: theirs; its metrics are in the line of a finished run.
        console: where it is shown.
        after: called after every cell, such as to write results down.
        clock: seconds.
        jobs: how many cells run at a time, in worker processes that print nothing.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        study: Study,
        console: Console,
        after: Callable[[Cell, str], None] = lambda cell, reason: None,
        clock: Callable[[], float] = time.monotonic,
        jobs: int = 1,
    ) -> None:
        self.pace = Pace(cells, jobs)
        self._cells = cells
        self._total = len(cells)
        self._failed = 0
        self._study = study
        self._console = console
        self._after = after
        self._clock = clock
        self._cell: Cell | None = None
        self._run: RunProgress | None = None
        self._live: Live | None = None
        self._redrawn = can_redraw(console)
        self._silence = ExitStack()

    def __enter__(self) -> StudyProgress:
        self._silence.enter_context(listening(lambda what, done, total: None))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._silence.close()
        self._stop()

    def on_cell_start(self, cell: Cell, config: Config) -> Sequence[Callback]:
        self._cell, self._run = cell, RunProgress(config.federation.rounds, config.local_training, self._clock)
        return (self,)

    def on_round_start(self, round: int, num_clients: int) -> None:
        if self._run is not None:
            self._run.start_round(round, num_clients)
        if self._live is None and self._redrawn:
            self._live = start_bars(self._console, self._bars)

    def on_client_end(self, phase: str, stats: ClientStats) -> None:
        if self._run is not None:
            self._run.count_client(stats)

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        if self._run is not None:
            self._run.end_round(record)

    def on_cell_end(self, cell: Cell, seconds: float) -> None:
        self._end(cell, seconds)
        history = History(cell.path)
        names = self._study.metric_names(cell.variant)
        found = {metric: history.value(name) for metric, name in names.items() if not is_relative(name)}
        values = [f"{metric} {number(value, metric)}" for metric, value in found.items() if value is not None]
        self._say(f"{cell.title}: {'  '.join(values) or 'finished'}  in {duration(seconds)}")
        self._after(cell, "")

    def on_cell_failure(self, cell: Cell, reason: str) -> None:
        self._failed += 1
        self._end(cell, None)
        self._say(f"{cell.title}: failed: {' '.join(reason.split())}")
        self._after(cell, reason)

    def _end(self, cell: Cell, seconds: float | None) -> None:
        self._stop()
        self._cell = self._run = None
        self.pace.finish(cell, seconds)

    @property
    def _done(self) -> int:
        """Cells that need no more work, those of worker processes included."""
        return self._failed + sum(RunDirectory(cell.path).finished for cell in self._cells)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: str) -> None:
        left = self.pace.seconds_left()
        rest = f", {duration(left)} left" if left else ""
        width = len(str(self._total))
        self._console.print(f"[{self._done:>{width}}/{self._total}] {text}{rest}", soft_wrap=True)

    def _bars(self) -> RenderableType:
        """Return bars for the study and for the run that goes on."""
        run, cell = self._run, self._cell
        if run is None or cell is None:
            return Text("")
        left = self.pace.seconds_left(cell, run.seconds_left)
        part = run.clients_done / run.clients_asked if run.clients_asked else 0.0
        grid = bar_grid()
        share = (run.rounds_done + part) / run.num_rounds
        whole = "" if left is None else f"{duration(left)} left"
        grid.add_row("runs", f"{self._done}/{self._total}", ProgressBar(total=self._total, completed=self._done + share), whole)
        own = "" if run.seconds_left is None else f"{duration(run.seconds_left)} left"
        grid.add_row("rounds", f"{run.rounds_done}/{run.num_rounds}", ProgressBar(total=1.0, completed=share), own)
        return Group(Text(cell.title, no_wrap=True, overflow="ellipsis"), grid)


def _logged_seconds(cell: Cell) -> float:
    """Return the seconds of the rounds and probes that the cell's run has logged."""
    timings = JsonLines(cell.path / "timings.jsonl").read()
    return float(sum(entry["seconds"].get(name, 0.0) for entry in timings for name in ("round", "probe")))
