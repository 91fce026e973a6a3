"""What the playground keeps of a walk, and what its links say."""

import numpy as np
import pytest


def test_blocks_are_means_of_all_that_was_pushed(lib):
    code = """
      const blocks = new track_js.Blocks(1);
      for (let n = 0; n < given; n++) blocks.push([n * n]);
      return { stride: blocks.stride, at: blocks.rows.map((_, i) => blocks.at(i)),
               means: blocks.rows.map((row) => row[0]) };"""
    for count, stride in ((319, 1), (320, 2), (2000, 8)):
        found = lib(code, count)
        assert found["stride"] == stride
        whole = np.arange(len(found["means"]) * stride, dtype=float).reshape(-1, stride)
        assert count - whole.size < stride
        np.testing.assert_allclose(found["means"], (whole**2).mean(axis=1))
        np.testing.assert_allclose(found["at"], whole.mean(axis=1))


def test_a_link_comes_back_as_it_was_made(lib):
    code = """
      const settings = { ...settings_js.defaults("regression"), ...given };
      const said = settings_js.toHash(settings);
      return [settings, said, settings_js.fromHash(said)];"""
    given = {"eta": 0.123, "sigma": 0, "lambda": 0.77, "d": 31, "hold": 5, "name": "a&b=c ü#",
             "seed": str(2**64 - 1), "start": [-1.5, 2], "on": ["anti", "hold"],
             "speed": 50}  # fmt: skip
    settings, said, back = lib(code, given)
    assert back == {"settings": settings, "refused": []}
    assert said.startswith("#playground?land=regression&")
    settings, said, back = lib(code, {"on": []})
    assert back["settings"]["on"] == []


@pytest.mark.parametrize(
    "bad",
    ["eta=7", "eta=", "eta=x", "sigma=-1", "lambda=1.5", "d=2.5", "d=201", "hold=1", "seed=-1",
     "seed=18446744073709551616", "name=", "start=1", "start=1,", "start=1,x", "start=1,200",
     "on=anti,sgd", "speed=3", "land=hill", "eta=NaN", "wrong=1", "constructor=1"],
)  # fmt: skip
def test_what_a_link_says_wrongly_is_refused_by_name(lib, bad):
    code = "return [settings_js.fromHash('#playground?' + given), settings_js.defaults('valley')];"
    (found, usual) = lib(code, bad + "&lambda=0.25" * (not bad.startswith("lambda")))
    assert len(found["refused"]) == 1
    assert bad.split("=")[0] in found["refused"][0]
    if not bad.startswith("lambda"):
        usual["lambda"] = 0.25
    assert found["settings"] == usual


def test_other_hashes_are_not_ours(lib):
    given = ["", "#playground", "#experiment-regression"]
    assert lib("return given.map(settings_js.fromHash)", given) == [None] * 3
