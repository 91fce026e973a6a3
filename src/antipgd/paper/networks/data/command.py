"""What `antipgd data` says and does."""

from collections.abc import Mapping
from pathlib import Path

from antipgd.checks import nearest
from antipgd.paper.networks.data import DATA_SETS
from antipgd.paper.networks.data.data_set import DataSet, Say
from antipgd.paper.networks.data.errors import DataUsageError


def data(
    name: str | None,
    source: Path | None,
    cache: Path | None,
    say: Say,
    sets: Mapping[str, DataSet] = DATA_SETS,
) -> int:
    """List the data sets, or put one where it can be loaded; returns the exit code."""
    if name is not None and name not in sets:
        raise DataUsageError(f"unknown data set {name!r}; {nearest(name, sets)}")
    if source is not None and (name is None or sets[name].fetch is None):
        which = [one.name for one in sets.values() if one.fetch is not None]
        raise DataUsageError(
            f"--from is for {', '.join(which)}: antipgd data {which[0]} --from PATH"
        )
    if name is None:
        width = max(map(len, sets))
        for one in sets.values():
            print(f"{one.name:{width}} {one.about}\n{'':{width}} {one.state(cache)}")
        return 0
    chosen = sets[name]
    if chosen.fetch is None:
        print(f"{name}: {chosen.about}; {chosen.state(cache)}")
        return 0
    for line in chosen.fetch(cache, source, say):
        print(line)
    return 0
