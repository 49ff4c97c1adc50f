"""The view on a terminal, by Textual: the curve, the categories, the largest storages and the latest iterations."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Footer, Sparkline, Static

from memwatch.errors import MemwatchError
from memwatch.live.watch import LEAST_S, Pace
from memwatch.report.console import bar, category_style, name, tail
from memwatch.sizes import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from memwatch.live.watch import Figures, State, View, Watch

_BAR_WIDTH = 12  # characters of the longest bar; this and the next four are guesses
_CATEGORIES = 7  # categories that are listed; a guess
_ITERATIONS = 6  # iterations that are listed; a guess
_ENDED_LOOK_S = 0.2  # seconds between two checks whether the program has ended; a guess
_HEAD_S = 5.0  # seconds after which the head of the screen is drawn again; a guess
_BARS_FROM = 80  # columns of a terminal that has room for the bars beside both tables


class LiveApp(App[None]):
    """Show a capture until the user quits.

    Args:
        watch: the capture.
        interrupt: what Ctrl-C does; by default it quits.
        has_ended: whether the view shall end by itself; asked a few times a second.
    """

    TITLE = "memwatch live"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True),
    ]
    CSS = """
    #head { height: auto; min-height: 2; max-height: 3; }
    #curve { height: 3; margin: 0 0 1 0; }
    #now { height: 8; }
    #categories { width: 1fr; margin: 0 2 0 0; }
    #iterations { width: 1fr; }
    #largest { height: 1fr; margin: 1 0 0 0; }
    """

    def __init__(
        self,
        watch: Watch,
        *,
        interrupt: Callable[[], None] | None = None,
        has_ended: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self._watch = watch
        self._interrupt = interrupt
        self._has_ended = has_ended
        self._pace = Pace()
        self.failure: MemwatchError | None = None

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen, from the top."""
        yield Static(id="head")
        yield Sparkline(id="curve", min_color="ansi_blue", max_color="ansi_bright_red")
        with Horizontal(id="now"):
            yield Static(id="categories")
            yield Static(id="iterations")
        yield Static(id="largest")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.run_worker(self._follow())
        self.set_interval(_HEAD_S, self._show_head)
        if self._has_ended is not None:
            self.set_interval(_ENDED_LOOK_S, self._leave_with_the_program)

    async def _follow(self) -> None:
        """Show what is new, as often as the pace allows; end with the recording."""
        while True:
            try:
                view = await asyncio.to_thread(self._watch.look)
            except MemwatchError as error:
                self.failure = error
                self.exit()
                return
            self._show(view)
            if view.state.is_last:
                return
            wait_s = self._pace.wait_s(self._watch.next_cpu_s)
            while wait_s > 0:
                await asyncio.sleep(wait_s)
                # the screen has taken time, and the file has grown
                wait_s = self._pace.owed_s(self._watch.next_cpu_s)

    def _show(self, view: View) -> None:
        self._show_head()
        figures = view.figures
        if figures is None:
            return
        # drawn from its least value up: 0 makes it the whole, and each column shows the highest of its values
        self.query_one("#curve", Sparkline).data = [0, *figures.curve_bytes]
        when = "at the end" if view.state.is_last else "now"
        has_bars = self.size.width >= _BARS_FROM
        self.query_one("#categories", Static).update(_categories(figures, when, has_bars=has_bars))
        self.query_one("#iterations", Static).update(_iterations(figures, view.state))
        self.query_one("#largest", Static).update(_largest(figures, when, self.size.width))

    def _show_head(self) -> None:
        self.query_one("#head", Static).update(head_of(self._watch.glance()))

    def _leave_with_the_program(self) -> None:
        if self._has_ended is not None and self._has_ended():
            self.exit()

    def action_interrupt(self) -> None:
        """Interrupt the program that this view belongs to; else quit."""
        if self._interrupt is None:
            self.exit()
        else:
            self._interrupt()


def head_of(view: View) -> Text:
    """Return two lines: the file and its state; what is live, and the peak so far."""
    figures = view.figures
    state = view.state.value
    if not view.state.is_last:
        state += f", flushed {view.age_s:.0f} s ago"
        if figures is not None and view.read_s > view.age_s + LEAST_S:  # a look waits until it is paid for
            state += f"; the figures below are from {view.read_s:.0f} s ago"
    first = Text.assemble(name(view.name, "bold"), "  ", state)
    if figures is None:
        return first
    others = f"  (also on {', '.join(figures.others)})" if figures.others else ""
    return Text.assemble(
        first,
        "\n",
        ("live ", "dim"), f"{format_bytes(figures.live_bytes)} on {figures.device}",
        (" after ", "dim"), format_duration(figures.now_ns),
        ("   peak " if view.state.is_last else "   peak so far ", "dim"), (format_bytes(figures.peak_bytes), "bold"),
        (" at ", "dim"), format_duration(figures.peak_ns), others,
    )  # fmt: skip


def _categories(figures: Figures, when: str, *, has_bars: bool) -> Table:
    table = _table(f"live {when}>", "category", *([""] if has_bars else []))
    for category, nbytes in figures.categories[:_CATEGORIES]:
        style = category_style(category)
        share_ratio = nbytes / (figures.live_bytes or 1)
        bars = [bar(share_ratio, _BAR_WIDTH, style)] if has_bars else []
        table.add_row(format_bytes(nbytes), name(category, style), *bars)
    if not figures.categories:
        table.add_row("0 B", Text("no tensor is alive", style="dim"))
    return table


def _iterations(figures: Figures, state: State) -> Table:
    table = _table("iteration>", "peak>", "time>")
    for each in reversed(figures.iterations[-_ITERATIONS:]):
        number = f"{each.number}" if each.has_ended else "the rest" if state.is_last else f"now {each.number}"
        table.add_row(number, format_bytes(each.peak_bytes), format_duration(each.duration_ns))
    if not figures.iterations:
        table.add_row(Text("none" if state.is_last else "none has ended yet", style="dim"))
    return table


def _largest(figures: Figures, when: str, width: int) -> Table:
    table = _table("bytes>", f"largest of {figures.count:,} live {when}", "category", "line")
    table.columns[1].no_wrap = False  # where the line is too narrow, names are cut and nothing else is
    for each in figures.largest:
        row = name(each.name), name(each.category, category_style(each.category))
        table.add_row(format_bytes(each.nbytes), *row, tail(each.place, width // 4))
    return table


def _table(*headings: str) -> Table:
    """Return a table without lines; a heading that ends with `>` is of a column of figures."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(
            heading.rstrip(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    return table
