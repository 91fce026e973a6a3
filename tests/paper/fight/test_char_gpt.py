"""The GPT: a gradient that is one, no look ahead, data of a seed."""

import pytest
import torch

from antipgd.paper.fight.problems.char_gpt import CONTEXT, LAYOUT, WIDTH, make, predict


@pytest.fixture(scope="module")
def gpt():
    return make("char_gpt", 5000)


def test_it_has_one_to_three_million_parameters(gpt):
    assert 1_000_000 < len(gpt.start()) < 3_000_000
    assert sum(torch.Size(shape).numel() for _, shape in LAYOUT) == len(gpt.start())


def test_the_gradient_is_that_of_the_loss(gpt):
    w, rows = gpt.start().double(), torch.tensor([0, 3])
    direction = torch.cos(torch.arange(len(w), dtype=torch.float64))
    with torch.no_grad():
        up, down = (gpt.loss(w + h * direction, rows) for h in (1e-5, -1e-5))
        gradient = gpt.gradient(w, rows)  # as bouts ask for it, without autograd around
    assert float(gradient @ direction) == pytest.approx(float(up - down) / 2e-5, rel=1e-5)


def test_it_does_not_look_ahead(gpt):
    text = torch.arange(20)[None]
    other = text.clone()
    other[0, 15:] += 1
    one, two = (predict(gpt.start(), t)[0] for t in (text, other))
    torch.testing.assert_close(one[:15], two[:15])
    assert not torch.allclose(one[15:], two[15:])


def test_noise_on_embeddings_reaches_the_gradient(gpt):
    rows, w = torch.tensor([0]), gpt.start()
    plain = gpt.gradient(w, rows)
    noise = torch.zeros(1, CONTEXT, WIDTH)
    assert torch.equal(gpt.gradient(w, rows, embedding_noise=noise), plain)
    assert not torch.allclose(gpt.gradient(w, rows, embedding_noise=noise + 0.1), plain)


def test_label_noise_is_refused(gpt):
    with pytest.raises(ValueError, match="char_gpt has no label noise"):
        gpt.gradient(gpt.start(), torch.tensor([0]), label_noise=torch.zeros(1, 49))


def test_seeds_parts_and_tasks_have_texts_of_their_own(gpt):
    others = (make("char_gpt", 5001), make("char_gpt", 5000, "validation"), gpt.second_task())
    assert len({gpt.checksum(), *(other.checksum() for other in others)}) == 4
    assert gpt.checksum() == make("char_gpt", 5000).checksum()


def test_its_start_knows_nothing_and_stays_above_the_floor(gpt):
    score = gpt.score(gpt.start())
    assert score["test_loss"] > 3
    assert 0.3 < gpt.floor < 0.7
    assert 0 <= score["accuracy"] < 0.2
