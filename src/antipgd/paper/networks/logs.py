"""What a training tells while it goes: a table in a file, a loss on a bar, TensorBoard."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from antipgd.extras import needed_by
from antipgd.paper.files import write_atomically
from antipgd.paper.networks.spec import MEASURES
from antipgd.paper.record import Point


def write_log(path: Path, points: Iterable[Point]) -> None:
    """A table with a row per epoch and place: all of them, anew, so that none is there twice."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["epoch", "place", *MEASURES])
    rows.writerows(points)
    write_atomically(path, text.getvalue().encode())


class Log:
    """Hears of points as they are measured; shows the loss of the last epoch on a tqdm bar.

    A training that is resumed tells again what it had measured before.
    """

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def add(self, points: Iterable[Point]) -> None:
        """Hear of new points."""
        for _, place, loss, *_ in points:
            if place == "running" and self._bar is not None:
                self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)


class TensorBoardLog(Log):
    """Also writes every measure as a scalar over epochs, for TensorBoard."""

    def __init__(self, folder: Path, bar: Any = None) -> None:
        with needed_by("a log for TensorBoard"):
            from torch.utils.tensorboard import SummaryWriter
        super().__init__(bar)
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, points: Iterable[Point]) -> None:
        points = list(points)
        super().add(points)
        for epoch, place, *values in points:
            for measure, value in zip(MEASURES, values, strict=True):
                if value is not None:
                    self._writer.add_scalar(f"{measure}/{place}", value, epoch)
        self._writer.flush()
