"""What `antipgd data` says and does."""

from collections.abc import Callable
from pathlib import Path

from antipgd.paper.datasets import DATASETS, DataError, DataUsageError, fetch
from antipgd.paper.datasets.cache import cache_folder
from antipgd.paper.datasets.cifar10 import CIFAR10, CITATION, HOME, Published
from antipgd.paper.datasets.sources import cached_batches


def _cifar10_state(cache: Path, published: Published) -> str:
    try:
        there = cached_batches(cache, published) is not None
    except DataError as error:
        return f"damaged: {error}"
    folder = cache / "cifar10"
    return f"in {folder}, checked" if there else f"not in {folder}: antipgd data cifar10"


def data(
    name: str | None,
    source: Path | None,
    cache: Path | None,
    say: Callable[[str], None],
    published: Published = CIFAR10,
) -> int:
    """List the datasets, or put one where it can be loaded; returns the exit code."""
    if name is not None and name not in DATASETS:
        raise DataUsageError(f"unknown dataset {name!r}; accepted: {', '.join(DATASETS)}")
    if source is not None and name != "cifar10":
        raise DataUsageError("--from is for cifar10: antipgd data cifar10 --from PATH")
    if name is None:
        states = {"cifar10": _cifar10_state(cache_folder(cache), published)}
        for dataset, about in DATASETS.items():
            print(f"{dataset:8} {about}\n         {states.get(dataset, 'nothing to fetch')}")
    elif name == "digits":
        print(f"digits: {DATASETS['digits']}; nothing to fetch")
    else:
        folder = fetch(cache, source, say, published)
        print(f"CIFAR-10 is in {folder}, all six checksums as published")
        if cache_folder(cache) != cache_folder(None):
            print(f"other commands find it with ANTIPGD_DATA={cache} in the environment")
        print(f"its images are not ours to pass on; cite {CITATION} ({HOME})")
    return 0
