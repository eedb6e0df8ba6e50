"""Table 1 of the paper: optimality gaps in per cent, mean and standard deviation over 50 runs, by cell."""

from __future__ import annotations

from typing import NamedTuple

DGPS = (1, 2, 3)
TAUS = (0.5, 0.75, 0.95)
SIZES = (256, 512, 1024, 2048, 4096)
PAPER_RUNS = 50


class Cell(NamedTuple):
    """One setting of Table 1: the generator, the critical fractile and the number of training rows."""

    dgp: int
    tau: float
    n: int


class PaperFigures(NamedTuple):
    """The paper's figures for a cell."""

    ieo_mean: float
    ieo_std: float
    bcp_mean: float
    bcp_std: float


CELLS = tuple(Cell(dgp, tau, n) for dgp in DGPS for tau in TAUS for n in SIZES)

# For each generator and fractile, a line of IEO and a line of BCP: mean and standard deviation for each sample size.
_PUBLISHED_FIGURES = """
26.3 29.9  10.5 4.09  6.47 4.31  2.42 1.64  1.04 0.74
5.18 2.33  2.10 1.04  1.22 0.33  0.94 0.35  0.76 0.27
22.5 22.7  13.9 6.11  7.79 4.57  2.52 2.26  1.28 0.96
5.11 1.86  2.90 1.30  1.39 0.61  0.97 0.35  0.79 0.24
50.4 40.6  31.1 15.9  13.3 7.61  5.16 3.13  3.41 2.23
7.70 5.36  5.35 2.68  3.47 2.22  2.38 1.43  1.82 0.75
31.0 22.9  14.7 9.13  8.26 5.59  3.04 3.05  0.98 0.81
2.49 1.38  1.33 0.75  0.68 0.30  0.42 0.14  0.30 0.14
37.7 23.3  24.6 8.19  15.4 5.08  10.2 1.75  8.97 0.86
10.2 2.77  9.22 1.07  8.53 0.45  8.37 0.39  8.14 0.25
97.9 52.6  63.0 16.7  41.6 11.8  30.7 4.93  25.9 2.44
31.2 4.94  28.7 3.54  27.1 2.16  25.5 1.10  24.9 0.78
33.9 13.2  25.6 6.38  17.4 4.88  12.2 3.59  6.71 3.46
21.3 2.19  15.4 3.96  7.91 2.61  4.31 1.13  3.01 0.49
32.6 9.77  25.8 4.16  18.9 4.19  14.1 3.50  7.12 3.14
22.0 2.82  18.2 3.16  10.6 4.35  4.96 1.35  2.85 0.65
51.9 17.2  41.3 12.4  25.6 6.14  17.8 3.75  9.31 3.91
23.7 3.21  21.6 2.27  19.2 1.92  12.4 3.98  6.46 2.99
"""


def _parse_figures() -> dict[Cell, PaperFigures]:
    lines = [[float(number) for number in line.split()] for line in _PUBLISHED_FIGURES.strip().splitlines()]
    table = {}
    for index, cell in enumerate(CELLS):
        row, column = divmod(index, len(SIZES))
        pair = slice(2 * column, 2 * column + 2)
        table[cell] = PaperFigures(*lines[2 * row][pair], *lines[2 * row + 1][pair])
    return table


PAPER = _parse_figures()
