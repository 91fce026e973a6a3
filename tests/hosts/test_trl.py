"""TRL: a callback that perturbs when `train` begins, with model and optimizer of the trainer."""

import copy

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import BEMACallback, DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from antipgd.torch import noise_of, perturb
from explicit import SEED, Explicit
from matrix import cell, refused
from small_training import check_same, differ, momentum

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # TRL's, of its own options
WORDS = {word: number for number, word in enumerate(["<pad>", "<end>", *"abcdefghijklmnopqrst"])}
STEPS, SIGMA = 6, 0.005
NOISE = {"sigma": SIGMA, "seed": SEED}


class Noise(TrainerCallback):
    """The line for TRL, and for every trainer of Hugging Face's kind."""

    def __init__(self, **settings):
        self.settings = settings

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        if noise_of(optimizer) is None:
            perturb(model, optimizer, **self.settings)


def tokenizer():
    words = Tokenizer(WordLevel(WORDS, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def llama(seed=0):
    torch.manual_seed(seed)
    size = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **size, pad_token_id=0))


def sentences():
    numbers = torch.randint(2, len(WORDS), (24, 9), generator=torch.Generator().manual_seed(1))
    return Dataset.from_dict({"input_ids": numbers.tolist()})


class Trainer(SFTTrainer):
    """TRL's own, which also writes down what it was asked for the loss of."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if model.training:
            self.__dict__.setdefault("seen", []).append((dict(inputs), num_items_in_batch))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def trainer(folder, noise=NOISE, model=None, callbacks=(), peft_config=None, own=True, **options):
    settings = {
        "max_steps": STEPS, "per_device_train_batch_size": 2, "learning_rate": 0.05,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True, "bf16": False,
        "report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True,
        "eos_token": "<end>", "pad_token": "<pad>",
    }  # fmt: skip
    model = model or llama()
    return Trainer(
        model, SFTConfig(str(folder), **settings | options), train_dataset=sentences(),
        eval_dataset=sentences(), processing_class=tokenizer(), peft_config=peft_config,
        optimizers=(momentum(model) if own else None, None),
        callbacks=[Noise(**noise), *callbacks],
    )  # fmt: skip


def explicit(done, accumulated=1, sigma=SIGMA, steps=None):
    """The z-form by hand, over the batches that the trainer took, with TRL's own loss."""
    start = copy.deepcopy(done.model)  # with the forward() that TRL has put over the model's own
    start.load_state_dict(llama().state_dict())
    walk = Explicit(start.train(), momentum, sigma)
    seen = done.seen if steps is None else done.seen[: steps * accumulated]
    for number, (inputs, count) in enumerate(seen, 1):
        loss = SFTTrainer.compute_loss(done, walk.carrier, dict(inputs), num_items_in_batch=count)
        loss.backward()
        if number % accumulated == 0:
            walk.step()
    return walk


def check_explicit(model, done, accumulated=1):
    check_same(model, explicit(done, accumulated).clean)
    assert differ(model, explicit(done, accumulated, sigma=0.0).clean)


@cell("trl", "accumulation")
@pytest.mark.parametrize("accumulated", [1, 3])
def test_accumulated_batches_are_one_step(tmp_path, accumulated):
    done = trainer(tmp_path, gradient_accumulation_steps=accumulated)
    done.train()
    assert noise_of(done.optimizer).step_count == STEPS
    assert len(done.seen) == STEPS * accumulated
    check_explicit(done.model, done, accumulated)


@cell("trl", "resume")
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.train()
    trainer(tmp_path, save_strategy="steps", save_steps=4).train()
    other = trainer(tmp_path, model=llama(seed=9))
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert len(other.seen) == 2
    assert noise_of(other.optimizer).step_count == STEPS
    check_same(other.model, whole.model)
    check_explicit(other.model, whole)


class Evaluated(TrainerCallback):
    """Keeps what each evaluation found and the weights it was about."""

    def __init__(self):
        self.found = []

    def on_evaluate(self, args, state, control, metrics=None, model=None, **_):
        weights = {name: p.detach().clone() for name, p in model.state_dict().items()}
        self.found.append((metrics["eval_loss"], weights))


@cell("trl", "evaluation")
def test_evaluation_is_at_the_clean_weights(tmp_path):
    """In the middle of training, and noise would have been seen."""
    evaluated = Evaluated()
    done = trainer(tmp_path, callbacks=[evaluated], eval_strategy="steps", eval_steps=2)
    done.train()
    assert len(evaluated.found) == STEPS // 2
    for loss, weights in evaluated.found:
        plain = llama(seed=9)
        plain.load_state_dict(weights)
        assert trainer(tmp_path, model=plain).evaluate()["eval_loss"] == loss
    inputs = done.seen[0][0]
    noisy = done.model.train()(input_ids=inputs["input_ids"]).logits
    assert not torch.equal(noisy, done.model.eval()(input_ids=inputs["input_ids"]).logits)


@cell("trl", "weights")
def test_saved_and_best_weights_are_clean(tmp_path):
    evaluated = Evaluated()
    done = trainer(
        tmp_path, callbacks=[evaluated], learning_rate=0.05, eval_strategy="steps", eval_steps=1,
        save_strategy="steps", save_steps=1, load_best_model_at_end=True,
    )  # fmt: skip
    done.train()
    losses = [loss for loss, _ in evaluated.found]
    best = 1 + losses.index(min(losses))
    z = explicit(done, steps=best).clean
    check_same(done.model, z)
    assert differ(done.model, explicit(done, sigma=0.0, steps=best).clean) == (best > 1)
    done.save_model(tmp_path / "saved")
    check_same(LlamaForCausalLM.from_pretrained(tmp_path / "saved"), z)
    for step in (2, STEPS):
        folder = tmp_path / f"checkpoint-{step}"
        kept = LlamaForCausalLM.from_pretrained(folder)
        check_same(kept, explicit(done, steps=step).clean)


@cell("trl", "averages")
def test_its_own_average_is_one_of_clean_weights(tmp_path):
    """BEMACallback; beside it the same callback over the z-form by hand."""
    ours, theirs = BEMACallback(update_freq=1), BEMACallback(update_freq=1)
    done = trainer(tmp_path, callbacks=[ours])
    done.train()
    zs = [explicit(done, steps=step).clean for step in range(STEPS + 1)]
    theirs.on_train_begin(None, done.state, None, model=zs[0])
    for step, z in enumerate(zs[1:], 1):
        theirs.thetat_params = list(z.parameters())
        with torch.no_grad():
            theirs._update_bema_weights(step)
    check_same(ours.running_model, theirs.running_model)
    assert differ(ours.running_model, done.model)


@cell("trl", "averages")
def test_a_reference_that_follows_the_model_is_clean(tmp_path):
    """DPO with sync_ref_model: the reference is a moving average of the policy."""

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            each.append({name: p.detach().clone() for name, p in model.named_parameters()})

    each, model = [], llama()
    text = Dataset.from_dict({"prompt": ["a b"] * 8, "chosen": ["c d"] * 8, "rejected": ["e"] * 8})
    settings = DPOConfig(
        str(tmp_path), max_steps=STEPS, per_device_train_batch_size=2, use_cpu=True, bf16=False,
        report_to="none", save_strategy="no", disable_tqdm=True, sync_ref_model=True,
        ref_model_mixup_alpha=0.5, ref_model_sync_steps=1,
    )  # fmt: skip
    done = DPOTrainer(
        model, llama(), settings, train_dataset=text, processing_class=tokenizer(),
        optimizers=(momentum(model), None), callbacks=[Keep(), Noise(**NOISE)],
    )  # fmt: skip
    done.train()
    assert noise_of(done.optimizer).step_count == len(each) == STEPS
    for name, reference in done.ref_model.named_parameters():
        average = llama().get_parameter(name).detach().clone()
        for z in each:
            average.mul_(0.5).add_(z[name], alpha=0.5)
        assert torch.equal(reference, average), name
    inputs = {"input_ids": torch.tensor([[2, 3, 4]])}
    assert torch.equal(done.ref_model.train()(**inputs).logits, done.ref_model(**inputs).logits)


@cell("trl", "bad_input")
@pytest.mark.parametrize("sigma", [-0.1, float("nan")])
def test_a_wrong_sigma(tmp_path, sigma, record_property):
    done = trainer(tmp_path, noise={"sigma": sigma})
    with refused(record_property, ValueError, "sigma must be a finite number >= 0"):
        done.train()
    check_same(done.model, llama())


@cell("trl", "bad_input")
def test_twice(tmp_path, record_property):
    done = trainer(tmp_path)
    done.train()
    with refused(record_property, ValueError, "this optimizer has noise already"):
        perturb(done.model, done.optimizer, SIGMA)


@cell("trl", "weights")
def test_adapters(tmp_path):
    """With the optimizer that the trainer makes; noise on the base below them, too."""
    config = LoraConfig(target_modules=["q_proj"], r=2)
    noise = NOISE | {"frozen": "*base_layer.weight"}
    done = trainer(tmp_path, noise=noise, peft_config=config, own=False)
    done.train()
    base = done.model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
    assert noise_of(done.optimizer).injected(base).any()
    assert torch.equal(base, llama().model.layers[0].self_attn.q_proj.weight)
