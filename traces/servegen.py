"""ServeGen clients (Xiang et al., NSDI '26): requests drawn from the published arrival parameters of clients.

A client is a CSV file without header, a line for each window of its time: start in seconds, rate, CV, family
(`Gamma`, `Weibull`, empty: idle) and the family's two parameters, shape and scale. The files of a model hold
no requests: lengths come from the distributions that the caller gives.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tinyllm.errors import InputError
from traces.arrivals import Seconds, weibull_gaps
from traces.formats.cells import CellError, parse_number
from traces.formats.containers import locate, open_text
from traces.generate import PRESETS, check_numbers
from traces.lengths import LengthModel
from traces.schema import Provenance, Trace, TraceRow

FAMILIES: Final = ("Gamma", "Weibull")
COLUMNS: Final = "start, rate, CV, family, shape, scale"
MOST_ROWS: Final = 20_000_000


class Window(NamedTuple):
    """[start, end) in seconds with one renewal process, idle where `rate` is 0."""

    start_s: float
    end_s: float
    rate: float
    family: str
    shape: float

    @property
    def expected_rows(self) -> float:
        return self.rate * (self.end_s - self.start_s)


@dataclass(frozen=True)
class Client:
    """A client by the name of its file, and its windows in order."""

    name: str
    windows: tuple[Window, ...]


def read_clients(path: str | Path) -> list[Client]:
    """The clients of a file, or of a directory (`*-trace.csv`, else `*.csv`) in order of name.

    A window ends where the next begins, the last of a client lasts as long as the one before it.

    Raises:
        InputError: nothing there, a line of another form, starts that do not grow, a single window.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*-trace.csv")) or sorted(path.glob("*.csv"))
    if not files:
        raise InputError(f"{path}: holds no CSV file; give ServeGen's client files, chunk-N-trace.csv")
    return [Client(file.stem, _windows(file)) for file in files]


def _windows(path: Path) -> tuple[Window, ...]:
    lines: list[Window] = []
    with open_text(path) as file:
        reader = csv.reader(file)
        for row, cells in enumerate(cells for cells in reader if "".join(cells).strip()):
            where = locate(path, row, reader.line_num)
            try:
                window = _window([cell.strip() for cell in cells])
            except CellError as error:
                raise InputError(f"{where}: {error}; mend the line") from None
            if lines and window.start_s <= lines[-1].start_s:
                raise InputError(f"{where}: starts before the window above it ends; order the windows")
            lines.append(window)
    if len(lines) < 2:
        raise InputError(f"{path}: has {len(lines)} windows, but it takes two to tell how long one lasts")
    starts = [window.start_s for window in lines]
    ends = [*starts[1:], 2 * starts[-1] - starts[-2]]
    return tuple(window._replace(end_s=end) for window, end in zip(lines, ends, strict=True))


def _window(cells: list[str]) -> Window:
    start_s = _number(cells[0], "start")
    family = cells[3] if len(cells) > 3 else ""
    if not family:
        return Window(start_s, start_s, 0.0, "", 1.0)
    if len(cells) != 6:
        raise CellError(f"has {len(cells)} cells, not the six {COLUMNS}")
    if family not in FAMILIES:
        raise CellError(f"family is {family[:40]!r}, not {' or '.join(FAMILIES)}")
    rate, shape = _number(cells[1], "rate"), _number(cells[4], "shape")
    if rate and not 0.05 <= shape <= 1e6:
        raise CellError(f"shape is {shape:g}, not between 0.05 and 1e6")
    return Window(start_s, start_s, rate, family, shape)


def _number(cell: str, name: str) -> float:
    try:
        number = float(parse_number(cell))
    except CellError as error:
        raise CellError(f"{name} {error}") from None
    if not 0 <= number <= 1e9:
        raise CellError(f"{name} is {number:g}, not between 0 and 1e9")
    return number


def generate_clients(
    path: str | Path,
    *,
    seed: int,
    requests: int | None = None,
    rate: float | None = None,
    prompt: LengthModel | None = None,
    output: LengthModel | None = None,
) -> Trace:
    """A trace of all clients together, each a tenant, in the seconds of their windows.

    Gaps have the shape of their window and mean 1 / rate: the scale follows from the rate, so that `rate` can
    set it. Each client draws from a stream of its own, anew in every window.

    Args:
        requests: the first so many; None: all windows.
        rate: mean arrivals a second over the whole time, to which all rates are scaled.
        prompt, output: distributions in place of the preset `poisson`'s.

    Raises:
        InputError: as `read_clients`; a number out of range; no arrival; more than 20 million rows.
    """
    check_numbers(1 if requests is None else requests, seed, 1.0 if rate is None else rate)
    clients = read_clients(path)
    scale = _rate_scale(path, clients, rate)
    seeds = np.random.SeedSequence(seed).spawn(len(clients) + 2)
    *streams, prompt_stream, output_stream = (np.random.Generator(np.random.PCG64(each)) for each in seeds)
    arrivals = sorted(
        (round(at * 1e9), index)
        for index, client in enumerate(clients)
        for at in _client_arrivals(client, scale, streams[index])
    )[:requests]
    if not arrivals:
        raise InputError(f"{path}: the clients make no request; give windows with rates above 0")
    plain = PRESETS["poisson"].classes[0]
    prompt, output = prompt or plain.prompt, output or plain.output
    rows = len(arrivals)
    prompts = prompt.sample(prompt_stream, rows).tolist()
    outputs = output.sample(output_stream, rows).tolist()
    entry = {"name": "generate", "clients": len(clients), "seed": seed, "requests": requests, "rate": rate}
    entry |= {"prompt": repr(prompt), "output": repr(output)}
    provenance = Provenance(f"clients:{path}", "servegen", transforms=[entry], rows_in=rows, rows_out=rows)
    made = (
        TraceRow(row, at_ns, prompt_tokens, output_tokens, clients[index].name)
        for row, ((at_ns, index), prompt_tokens, output_tokens) in enumerate(
            zip(arrivals, prompts, outputs, strict=True)
        )
    )
    return Trace(made, provenance)


def _rate_scale(path: str | Path, clients: list[Client], rate: float | None) -> float:
    """The factor of every client's rate that gives the mean `rate`, 1 where that is None."""
    windows = [window for client in clients for window in client.windows]
    expected = sum(window.expected_rows for window in windows)
    span = max(window.end_s for window in windows) - min(window.start_s for window in windows)
    scale = 1.0 if rate is None or not expected else rate * span / expected
    if expected * scale > MOST_ROWS:
        raise InputError(
            f"{path}: {expected * scale:,.0f} requests are to be expected; give a smaller --rate"
        )
    return scale


def _client_arrivals(client: Client, scale: float, rng: np.random.Generator) -> list[float]:
    arrivals: list[float] = []
    for window in client.windows:
        if window.rate:
            arrivals += _window_arrivals(window, window.rate * scale, rng)
    return arrivals


def _window_arrivals(window: Window, rate: float, rng: np.random.Generator) -> list[float]:
    times = np.array([window.start_s])
    expected = rate * (window.end_s - window.start_s)
    while times[-1] < window.end_s:
        gaps = _gaps(window, rate, math.ceil(1.1 * expected) + 8, rng)
        times = np.concatenate([times, times[-1] + np.cumsum(gaps)])
    times = times[1:]
    return [float(at) for at in times[times < window.end_s]]


def _gaps(window: Window, rate: float, count: int, rng: np.random.Generator) -> Seconds:
    if window.family == "Weibull":
        return weibull_gaps(rng, count, window.shape, rate)
    return rng.gamma(window.shape, 1 / (window.shape * rate), count)
