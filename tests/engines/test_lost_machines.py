"""A node or a job is killed in the middle: the same table and weights, none missing or double."""

from collections import Counter
from contextlib import closing

import pytest
import torch

import rigs
from antipgd.paper.engines import parcels
from antipgd.paper.engines.on import read_on
from antipgd.paper.engines.opening import opened
from antipgd.paper.networks import workers
from antipgd.paper.networks.train import train
from antipgd.paper.pipeline import complete
from antipgd.paper.simulation import local
from antipgd.paper.simulation.table import table
from antipgd.paper.store import Store


def heard(results, kill, names):
    """Results as they are, counted by name; before one is passed on, something is killed, once."""
    killed = False
    with closing(results) as ones:
        for one in ones:
            names[one.result.run.name] += 1
            killed = killed or kill()
            yield one
    assert killed


def weights(root, spec):
    return torch.load(root / spec.name / "clean-at-end.pt", weights_only=True)


def check_small(engine, tmp_path, kill, warnings):
    runs, names = rigs.small_runs(), Counter()
    store = Store(tmp_path / "small")

    def way(missing, tick):
        return heard(local.run_on(engine, missing, tick, warnings.append), kill, names)

    outcome = complete(runs, store, way, show_progress=False)
    alone = {record.run.name: record for record in local.run_local(runs, 1)}
    assert len(runs) == 200
    assert outcome.records == alone
    assert names == Counter(alone.keys())
    here = table([alone[run.name] for run in runs])
    assert table(outcome.in_order(runs)).to_csv() == here.to_csv()
    assert len(list((tmp_path / "small" / "record").rglob("*.json"))) == 200


def check_trainings(engine, tmp_path, kill, warnings):
    specs, names, root = rigs.trainings(), Counter(), tmp_path / "there"
    store = Store(tmp_path / "trained")

    def way(missing, tick):
        return heard(workers.run_on(engine, missing, root, tick, warnings.append), kill, names)

    outcome = complete(specs, store, way, show_progress=False)
    alone = {spec.name: train(spec, tmp_path / "here") for spec in specs}
    assert len(specs) == 12
    assert outcome.records == alone
    assert names == Counter(alone.keys())
    for spec in specs:
        mine, theirs = weights(tmp_path / "here", spec), weights(root, spec)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert len(list((tmp_path / "trained" / "record").rglob("*.json"))) == 12


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_small, check_trainings])
def test_a_node_of_ray_is_killed(check, tmp_path):
    warnings = []
    with rigs.cluster(3) as cluster:

        def kill():
            rigs.lose_power(cluster, rigs.busy_node(cluster))
            return True

        with opened(read_on(f"ray={cluster.address}"), folder=tmp_path / "jobs") as engine:
            check(engine, tmp_path, kill, warnings)
    assert any("died" in warning for warning in warnings), warnings
    assert not rigs.stray()


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_small, check_trainings])
def test_a_job_of_submitit_is_killed(check, tmp_path, monkeypatch):
    warnings, jobs = [], []
    with opened(read_on("slurm=local"), 2, tmp_path / "jobs") as engine:
        submit = engine.submit

        def remembering(spec, work):
            """Bundles end two by two, and then none is under way: the third dies as it begins."""
            future = submit(spec, work)
            jobs.append(future.job)
            if check is check_small and len(jobs) == 3:
                rigs.kill_begun(int(future.job.job_id))
            return future

        monkeypatch.setattr(engine, "submit", remembering)

        def kill():
            if check is check_small:
                return len(jobs) > 2
            for job in jobs:  # files of one that was heard are gone, one that is done has a result
                there = job.paths.submitted_pickle.exists() and not job.done()
                if there and not job.paths.result_pickle.exists():
                    rigs.kill_all(int(job.job_id))
                    return True
            return False  # the next result will find one that is under way

        check(engine, tmp_path, kill, warnings)
    assert any("ended without a result" in warning for warning in warnings), warnings


def test_records_say_which_machine_made_them(tmp_path, monkeypatch):
    runs, store = rigs.small_runs(5), Store(tmp_path / "store")
    monkeypatch.setattr(parcels, "provenance", lambda: {"processor": "another"})
    with opened(read_on("slurm=debug"), folder=tmp_path / "jobs") as engine:
        complete(runs, store, lambda some, tick: local.run_on(engine, some), show_progress=False)
    assert {store.provenance(run)["processor"] for run in runs} == {"another"}
