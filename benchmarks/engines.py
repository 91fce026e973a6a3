"""What Ray costs: trainings on a Ray of 2 × 1 CPU against `--on processes=2`; `make bench-engines`.

The same trainings on both, in turns, each in a process of its own; the order changes from round to
round. Start-up is apart: each engine first trains one short training on each of its CPUs, and the
clock runs from then to the last record. Judged is the ratio of the medians over rounds, which is to
be at most 1.10. Sizes are fixed here: a round of trainings takes three minutes or more on two free
cores; `--epochs` makes it shorter for a try, which judges nothing. What is judged goes into
benchmarks/results.json and into docs/cluster.md.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from antipgd.paper.engines.on import read_on
from antipgd.paper.engines.opening import opened
from antipgd.paper.engines.processes import Processes
from antipgd.paper.networks.spec import Training, make_training
from antipgd.paper.networks.workers import run_on
from antipgd.paper.pipeline import Made
from antipgd.paper.record import Record

ENGINES = ("processes", "ray")
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[1] / "docs" / "cluster.md"
MARKS = "<!-- engines begin -->", "<!-- engines end -->"
COUNT, EPOCHS, ROUNDS, LEAST_SECONDS, TARGET = 28, 600, 3, 180.0, 1.10


def trainings(epochs: int, count: int = COUNT) -> list[Training]:
    return [
        make_training(
            "digits", "cnn", "anti", batch=50, epochs=epochs, seed=seed, images=1000, width=8,
            sigma=0.02, measure=(0, epochs),
        )
        for seed in range(count)
    ]  # fmt: skip


def timed(engine: str, epochs: int) -> dict:
    """Seconds of start-up and of the trainings on one engine, and a digest of the records."""
    with tempfile.TemporaryDirectory() as folder:
        root, began = Path(folder) / "checkpoints", time.perf_counter()
        with opened(read_on(engine), 2, Path(folder) / "jobs") as found:
            where = _Kept(found or Processes(2))
            list(run_on(where, trainings(1, 2), root))  # imports, and compiles the kernels
            ready = time.perf_counter()
            results = list(run_on(where, trainings(epochs), root))
            done = time.perf_counter()
            where.end()
    records = [one.result if isinstance(one, Made) else one for one in results]
    assert all(isinstance(record, Record) for record in records), records
    texts = sorted(record.to_json() for record in records)
    return {"start": ready - began, "seconds": done - ready, "records": texts}


class _Kept:
    """An engine whose processes stay between two lists of trainings, as Ray's do."""

    def __init__(self, engine) -> None:
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def stop(self, futures) -> None:
        if futures:
            self._engine.stop(futures)

    def end(self) -> None:
        self._engine.stop(())


def child(engine: str, epochs: int) -> dict:
    command = [sys.executable, __file__, "--engine", engine, "--epochs", str(epochs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(timed(options.engine, options.epochs)))
        return 0
    found: dict[str, list[dict]] = {engine: [] for engine in ENGINES}
    for turn in range(options.rounds):
        for engine in ENGINES if turn % 2 == 0 else ENGINES[::-1]:
            found[engine].append(child(engine, options.epochs))
            last = found[engine][-1]
            print(f"round {turn + 1}, {engine:9}: {last['seconds']:7.1f} s, start-up apart "
                  f"{last['start']:5.1f} s", flush=True)  # fmt: skip
    medians = {e: statistics.median(one["seconds"] for one in found[e]) for e in ENGINES}
    ratio = medians["ray"] / medians["processes"]
    same = len({tuple(one["records"]) for e in ENGINES for one in found[e]}) == 1
    print(f"{COUNT} trainings of {options.epochs} epochs, medians of {options.rounds} rounds: "
          + ", ".join(f"{e} {s:.1f} s" for e, s in medians.items()))  # fmt: skip
    print(f"ratio {ratio:.3f} (target: at most {TARGET:.2f}); records "
          + ("all the same" if same else "DIFFER"))  # fmt: skip
    if min(medians.values()) < LEAST_SECONDS:
        print(f"not judged: less than {LEAST_SECONDS:g} s of trainings")
        return 0 if same else 1
    if same:
        starts = {e: statistics.median(one["start"] for one in found[e]) for e in ENGINES}
        keep({"trainings": COUNT, "epochs": options.epochs, "rounds": options.rounds,
              "seconds": medians, "start": starts, "ratio": ratio})  # fmt: skip
    return 0 if same and ratio <= TARGET else 1


def sentence(found: dict) -> str:
    """What docs/cluster.md says of it."""
    seconds, start = found["seconds"], found["start"]
    return (
        f"{found['trainings']} trainings took {seconds['ray']:.0f} s on Ray and "
        f"{seconds['processes']:.0f} s on processes (medians of {found['rounds']} rounds, a ratio "
        f"of {found['ratio']:.2f}); until the first could begin, {start['ray']:.0f} s and "
        f"{start['processes']:.0f} s."
    )


def keep(found: dict) -> None:
    stored = json.loads(RESULTS.read_text())
    RESULTS.write_text(json.dumps(stored | {"engines": found}, indent=1) + "\n")
    begin, end = MARKS
    text = PAGE.read_text("utf-8")
    written = f"{begin}\n{sentence(found)}\n{end}"
    PAGE.write_text(re.sub(f"{begin}.*?{end}", lambda _: written, text, flags=re.S), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
