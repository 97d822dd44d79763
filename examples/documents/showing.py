"""What the demo shows: a bar for each document, the table at the end, and answers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from lateack import Event, Job

from .indexing import Hit

STEPS = ("parse", "chunk", "embed", "index")
COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "retrying": "magenta"}


Origin = Literal["new", "resumed", "replayed"]
"""Whether this run processed a document, found it under way, or found it done."""


class Outcome(msgspec.Struct):
    """What became of one document: its four jobs in order."""

    source: str
    origin: Origin
    jobs: list[Job]

    @property
    def succeeded(self) -> bool:
        return all(job.status == "succeeded" for job in self.jobs)

    @property
    def reason(self) -> str:
        """Why it did not succeed, in the words of the first job that did not."""
        ended = (job for job in self.jobs if job.status != "succeeded")
        return next((job.error_message or job.status for job in ended), "")


def console() -> Console:
    """Standard output; in a pipe it is wide enough for every table, and without control codes."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding shows a question mark rather than stopping the demo.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=110)


class Board:
    """A bar for each document; where there is no terminal, a line for each step that ends."""

    def __init__(self, out: Console, sources: Sequence[str]) -> None:
        self._out = out
        self._width = max(map(len, sources))
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        if out.is_terminal and not out.is_dumb_terminal:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[state]}"),
                console=out,
            )
            for source in sources:
                name = source.ljust(self._width)
                self._bars[source] = self._progress.add_task(
                    name, total=100.0 * len(STEPS), state="", start=False
                )

    def __enter__(self) -> Board:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress:
            self._progress.stop()

    def submitted(self, source: str, origin: Origin) -> None:
        """The service has the document, or had it already."""
        state = "submitted" if origin == "new" else origin
        if self._progress:
            self._progress.start_task(self._bars[source])
            self._progress.update(self._bars[source], state=f"[dim]{state}")
        else:
            self._out.print(f"{source:{self._width}}  {state}", soft_wrap=True)

    def heard(self, source: str, step: str, event: Event) -> None:
        """An event of one of its jobs."""
        if self._progress is None:
            if event.ended or event.status == "retrying":
                self._out.print(f"{source:{self._width}}  {step:5}  {event.status}", soft_wrap=True)
            return
        done = 100.0 if event.status == "succeeded" else event.progress or 0.0
        colour = COLOURS.get(event.status, "cyan")
        again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
        state = f"[{colour}]{step} {event.status}[/]{again} [dim]{escape(event.message or '')}"
        completed = 100.0 * STEPS.index(step) + done
        self._progress.update(self._bars[source], completed=completed, state=state)

    def finished(self, outcome: Outcome) -> None:
        """All its jobs have ended."""
        if self._progress is None:
            return
        bar = self._bars[outcome.source]
        if outcome.succeeded:
            state = "[green]indexed[/]" + (
                f" [dim]{outcome.origin}" if outcome.origin != "new" else ""
            )
            self._progress.update(bar, completed=100.0 * len(STEPS), state=state)
        self._progress.stop_task(bar)


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """A row for each job: its state, how many attempts, how long the last took."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for name, justify in [
        ("document", "left"),
        ("step", "left"),
        ("state", "left"),
        ("attempts", "right"),
        ("seconds", "right"),
        ("", "left"),
    ]:
        table.add_column(name, justify=justify, no_wrap=name == "document")  # type: ignore[arg-type]
    for outcome in outcomes:
        for job in outcome.jobs:
            step = job.task.rpartition(".")[2]
            note = job.error_code or outcome.origin
            table.add_row(
                outcome.source if step == STEPS[0] else "",
                step,
                Text(job.status, style=COLOURS.get(job.status, "")),
                str(job.attempt),
                f"{seconds_of(job):.2f}" if job.started_at and job.completed_at else "",
                Text(note, style="red" if job.error_code else "dim"),
            )
    return table


def seconds_of(job: Job) -> float:
    """From the start of the last attempt to the end, in seconds."""
    assert job.started_at is not None
    assert job.completed_at is not None
    return (job.completed_at - job.started_at).total_seconds()


def show_answer(out: Console, question: str, hit: Hit | None) -> None:
    """A question, and the passage that answers it with the file that it is from."""
    out.print()
    out.print(Text.assemble(("? ", "cyan"), (question, "bold")))
    if hit is None:
        out.print(Text("  no passage found", style="red"))
        return
    where = f"{hit.source}, page {hit.page}" + (f", “{hit.heading}”" if hit.heading else "")
    out.print(Padding(Text(hit.text), (0, 0, 0, 2)))
    out.print(Text(f"  {where}  (score {hit.score:.1f})", style="dim"))
