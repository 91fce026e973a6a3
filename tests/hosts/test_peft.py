"""peft: LoRA adapters are trained, and the frozen base below them takes noise by `frozen=`."""

import io

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from antipgd.torch import perturb
from explicit import Explicit
from matrix import cell, refused
from small_training import NOISE, SIGMA, batches, check_same, differ

DATA = batches(8)
FROZEN = "*base_layer.weight"


class Base(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def lora(seed=0, **options):
    """The same base always; adapters that `seed` says, both halves of them random."""
    base = Base()
    torch.manual_seed(seed)
    config = LoraConfig(
        target_modules=["first", "second"], r=2, lora_alpha=4, init_lora_weights=False, **options
    )
    return get_peft_model(base, config)


def momentum(model):
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.05, momentum=0.9)


class Run:
    def __init__(self, model=None, **options):
        self.model = lora() if model is None else model
        self.optimizer = momentum(self.model)
        self.noise = perturb(self.model, self.optimizer, **NOISE | {"frozen": FROZEN} | options)

    def train(self, data, accumulated=1, after=lambda: None):
        self.model.train()
        for number, (x, y) in enumerate(data, 1):
            (mse_loss(self.model(x), y) / accumulated).backward()
            if number % accumulated == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                after()
        return self


def explicit(data, accumulated=1, sigma=SIGMA):
    """The z-form by hand: base weights and adapters with noise, biases of the base without."""
    walk = Explicit(lora(), momentum, sigma)
    walk.excluded = {name for name, _ in lora().named_parameters() if name.endswith(".bias")}
    for number, (x, y) in enumerate(data, 1):
        (mse_loss(walk.carrier(x), y) / accumulated).backward()
        if number % accumulated == 0:
            walk.step()
    return walk


def check_explicit(model, data, accumulated=1):
    check_same(model, explicit(data, accumulated).clean)
    assert differ(model, explicit(data, accumulated, sigma=0.0).clean)


def base_weights(model):
    return {name: p for name, p in model.named_parameters() if not p.requires_grad}


@cell("peft", "resume")
def test_a_saved_adapter_goes_on_bit_for_bit(tmp_path):
    """save_pretrained keeps the adapter alone; the optimizer's state has the noise, of all."""
    half = Run().train(DATA[:5])
    half.model.save_pretrained(tmp_path)
    file = io.BytesIO()
    torch.save(half.optimizer.state_dict(), file)
    file.seek(0)
    other = Run(PeftModel.from_pretrained(Base(), tmp_path, is_trainable=True))
    other.optimizer.load_state_dict(torch.load(file))
    assert other.noise.step_count == 5
    other.train(DATA[5:])
    check_same(other.model, Run().train(DATA).model)
    check_explicit(other.model, DATA)


@cell("peft", "evaluation")
def test_evaluation_is_at_the_clean_weights():
    run, x = Run(), DATA[0][0]
    for _ in range(2):
        run.train(DATA[:4])
        plain = lora(seed=9)
        plain.load_state_dict(run.model.state_dict())
        plain.eval(), run.model.eval()
        assert torch.equal(run.model(x), plain(x))
        with run.model.disable_adapter(), plain.disable_adapter():  # the base alone
            assert torch.equal(run.model(x), plain(x))
            assert torch.equal(run.model(x), Base()(x))
            assert not torch.equal(run.model.train()(x), plain(x))


@cell("peft", "weights")
def test_saved_and_merged_weights_are_clean(tmp_path):
    run = Run().train(DATA)
    z = explicit(DATA).clean
    check_same(get_peft_model_state_dict(run.model), get_peft_model_state_dict(z))
    check_same(base_weights(run.model), base_weights(lora()))
    run.model.save_pretrained(tmp_path)
    check_same(PeftModel.from_pretrained(Base(), tmp_path), z)
    run.model.merge_adapter()  # in place, while the noise is there
    z.merge_adapter()
    check_same(base_weights(run.model), base_weights(z))
    run.model.unmerge_adapter()
    z.unmerge_adapter()
    check_same(run.model.merge_and_unload(), z.merge_and_unload())


@cell("peft", "accumulation")
def test_accumulated_batches_are_one_step():
    run = Run().train(DATA, accumulated=4)
    assert run.noise.step_count == 2
    check_explicit(run.model, DATA, accumulated=4)


@cell("peft", "averages")
def test_averages_are_those_of_clean_weights():
    """peft has none; torch's own, over the whole model."""

    def made(model):
        moving = get_ema_multi_avg_fn(0.9)
        return AveragedModel(model), AveragedModel(model, multi_avg_fn=moving)

    run = Run()
    each, expected = made(run.model), made(lora())
    run.train(DATA, after=lambda: [one.update_parameters(run.model) for one in each])
    for n in range(1, len(DATA) + 1):
        for average in expected:
            average.update_parameters(explicit(DATA[:n]).clean)
    for mine, theirs in zip(each, expected, strict=True):
        check_same(mine.module, theirs.module)


@cell("peft", "bad_input")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma": -1.0}, "sigma must be a finite number >= 0"),
        ({"frozen": "base_layer.weight"}, r"frozen 'base_layer.weight' matches no parameter"),
    ],
)
def test_wrong_settings(options, words, record_property):
    model = lora()
    with refused(record_property, ValueError, words):
        perturb(model, momentum(model), **NOISE | {"frozen": FROZEN} | options)
    check_same(model, lora())


@cell("peft", "bad_input")
def test_twice(record_property):
    run = Run()
    with refused(record_property, ValueError, "this optimizer has noise already"):
        perturb(run.model, run.optimizer, SIGMA)
    check_explicit(run.train(DATA).model, DATA)


@cell("peft", "bad_input")
def test_a_quantised_base(record_property):
    """QLoRA: its base has no weights that noise could be added to; adapters may take theirs."""
    base = Base()
    base.first = Linear4bit(6, 8, compute_dtype=torch.float32).to("cpu")
    model = get_peft_model(base, LoraConfig(target_modules=["first"], r=2))
    optimizer = momentum(model)
    of_its_own = "first.base_layer.weight' is a Params4bit, a tensor of its own kind"
    with refused(record_property, TypeError, of_its_own):
        perturb(model, optimizer, **NOISE, frozen=FROZEN)
    noise = perturb(model, optimizer, **NOISE)
    assert [member.name.split(".")[-3] for member in noise.members] == ["lora_A", "lora_B"]
