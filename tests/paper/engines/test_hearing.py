"""The loop that makes results of futures, on an engine that does what it is told."""

from dataclasses import dataclass

import pytest

from antipgd.paper.engines import hearing
from antipgd.paper.engines.engine import Done, Lost, NoRoomError
from antipgd.paper.engines.hearing import Line, results
from antipgd.paper.pipeline import Made
from antipgd.paper.record import Failure


@dataclass(frozen=True)
class Spec:
    name: str
    steps: int = 4


class Scripted:
    """An engine whose attempts at a spec say what the script has for them, one word at a time."""

    slots, tries = 2, 3

    def __init__(self, script):
        self.script = {name: [list(words) for words in tries] for name, tries in script.items()}
        self.most, self.submitted, self.stopped, self.open = 0, [], None, 0

    def submit(self, spec, work):
        self.submitted.append(spec.name)
        self.open += 1
        self.most = max(self.most, self.open)
        return Attempt(self, spec, self.script[spec.name].pop(0))

    def wait(self, futures):
        assert len(futures) == self.open

    def stop(self, futures):
        self.stopped = [future.spec.name for future in futures]
        return self.late(futures)

    def late(self, futures):
        return []


class Attempt:
    def __init__(self, engine, spec, words):
        self.engine, self.spec, self.words = engine, spec, words

    def heard(self):
        said = self.words.pop(0)
        if isinstance(said, Done | Lost):
            self.engine.open -= 1
        return [said]


def hear(script, specs=None):
    engine, ticks, warnings = Scripted(script), [], []
    specs = [Spec(name) for name in script] if specs is None else specs
    found = list(results(Line(specs), engine, None, ticks.append, warnings.append))
    return engine, found, [tick for tick in ticks if tick], warnings


def done(name):
    return Done([f"result of {name}"])


def test_results_come_as_they_finish_and_no_more_than_slots_are_under_way():
    script = {"a": [[1, 1, 1, 1, done("a")]], "b": [[4, done("b")]], "c": [[4, done("c")]]}
    engine, found, ticks, warnings = hear(script)
    assert found == ["result of b", "result of c", "result of a"]
    assert (engine.submitted, engine.most, engine.stopped) == (["a", "b", "c"], 2, [])
    assert (sum(ticks), warnings) == (12, [])


def test_what_is_lost_is_tried_again_and_its_steps_count_once():
    script = {"a": [[1, 2, Lost("node gone")], [3, 1, done("a")]]}
    engine, found, ticks, warnings = hear(script)
    assert found == ["result of a"]
    assert engine.submitted == ["a", "a"]
    assert ticks == [1, 2, 1]  # the second attempt tells of the first three again
    assert warnings == ["spec a: node gone; it is tried again"]


def test_it_is_a_failure_after_so_many_losses_without_progress():
    script = {"a": [[Lost("dead")], [Lost("dead")], [Lost("out of memory")]], "b": [[done("b")]]}
    engine, found, _, _ = hear(script)
    reason = "out of memory (3 times in a row, without a step of progress)"
    assert found == ["result of b", Failure(Spec("a"), reason, "")]
    assert engine.submitted.count("a") == 3


def test_progress_forgives_the_losses_before_it():
    lost = [Lost("time is up")]
    script = {"a": [lost, lost, [1, *lost], lost, [1, 1, *lost], lost, [2, 2, done("a")]]}
    _, found, ticks, _ = hear(script)
    assert found == ["result of a"]
    assert sum(ticks) == 4


def test_the_same_step_again_is_no_progress():
    script = {"a": [[1, Lost("x")], [1, Lost("x")], [1, Lost("x")]]}
    _, (failure,), _, _ = hear(script)
    assert failure.reason.startswith("x (3 times")


def test_steps_of_what_told_nothing_are_told_at_its_end():
    assert hear({"a": [[done("a")]]})[2] == [4]


def test_every_run_of_a_bundle_fails_with_it():
    @dataclass(frozen=True)
    class Bundle(Spec):
        runs = (Spec("one"), Spec("two"))

    script = {"a": [[Lost("x")]] * 3}
    _, found, _, _ = hear(script, [Bundle("a")])
    assert [failure.run.name for failure in found] == ["one", "two"]


def test_the_machine_that_made_a_result_is_told():
    made = {"processor": "another"}
    _, found, _, _ = hear({"a": [[Done(["result"], made)]]})
    assert found == [Made("result", made)]


def test_warnings_are_passed_on():
    assert hear({"a": [["odd", done("a")]]})[3] == ["odd"]


def test_who_stops_listening_stops_what_is_under_way():
    engine = Scripted({"a": [[done("a")]], "b": [[1] * 9]})
    found = results(Line([Spec("a"), Spec("b")]), engine, None)
    assert next(found) == "result of a"
    found.close()
    assert engine.stopped == ["b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_what_is_done_while_the_engine_stops_is_kept(error):
    """Of what was asked for; nobody hears it who has stopped listening."""

    def tick(steps):
        if steps:
            raise error

    engine = Scripted({"a": [[1]], "b": [[1]]})
    engine.late = lambda futures: [(futures[1], done("b"))]
    heard = results(Line([Spec("a"), Spec("b", 0)]), engine, None, tick)
    assert next(heard) == "result of b"
    with pytest.raises((KeyboardInterrupt, OSError)):
        next(heard)
    assert engine.stopped == ["a", "b"]


class Full(Scripted):
    """Takes the first, refuses so many of the others, and then takes them."""

    def __init__(self, script, refusals):
        super().__init__(script)
        self.refusals, self.asked = refusals, 0

    def submit(self, spec, work):
        if self.submitted and self.asked < self.refusals:
            self.asked += 1
            raise NoRoomError("socket timed out")
        return super().submit(spec, work)


@pytest.fixture
def clock(monkeypatch):
    """Ten seconds at each look."""
    now = iter(range(0, 10**6, 10))
    monkeypatch.setattr(hearing.time, "monotonic", lambda: next(now))


def test_a_refused_job_waits_while_others_are_under_way(clock):
    engine, warnings = Full({"a": [[1] * 30 + [done("a")]], "b": [[done("b")]]}, 2), []
    specs = Line([Spec("a"), Spec("b")])
    found = list(results(specs, engine, None, warn=warnings.append))
    assert found == ["result of b", "result of a"]
    assert warnings == [
        "socket timed out; it is asked again in 15 s, 1 jobs go on",
        "socket timed out; it is asked again in 30 s, 1 jobs go on",
    ]


def test_an_engine_that_goes_on_refusing_is_asked_so_often_and_then_at_the_end(clock):
    """What is under way is heard out; then the refusal ends the command."""
    engine, warnings = Full({"a": [[1] * 500 + [done("a")]], "b": [[]]}, 10**6), []
    heard = results(Line([Spec("a"), Spec("b")]), engine, None, warn=warnings.append)
    assert next(heard) == "result of a"
    assert engine.asked == 7
    assert "it is asked again when nothing is under way, 1 jobs go on" in warnings[-1]
    with pytest.raises(NoRoomError, match="socket timed out"):
        next(heard)
    assert engine.asked == 8


def test_an_error_while_results_are_kept_stops_them_too():
    engine = Scripted({"a": [[done("a")]], "b": [[1] * 9]})

    def full():
        for _ in results(Line([Spec("a"), Spec("b")]), engine, None):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        full()
    assert engine.stopped == ["b"]
