"""Hugging Face models: GPT2 and Llama, tied, with each kind of gradient checkpointing.

Not collected by default: `pytest tests/hosts` where transformers is installed. The models are made
here; nothing is downloaded.
"""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from antipgd.torch import perturb
from explicit import SEED, Explicit, same

SIGMA = 0.005
MODES = {
    "off": None,
    "reentrant": {"use_reentrant": True},
    "non-reentrant": {"use_reentrant": False},
}


SMALL = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def gpt2():
    size = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**SMALL, **size, tie_word_embeddings=True))


def llama():
    size = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**SMALL, **size, tie_word_embeddings=True))


def adamw(model):
    return torch.optim.AdamW(model.named_parameters(), lr=1e-3)


def run(model, words, step):
    torch.manual_seed(step)  # for dropout
    output = model(input_ids=words, labels=words, use_cache=False)
    output.loss.backward()
    return output


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("memory", ["keep", "recompute"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [gpt2, llama])
def test_bitwise_the_explicit_z_form(make, mode, memory):
    torch.manual_seed(0)
    model = make().train()
    if MODES[mode] is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=MODES[mode])
        model.enable_input_require_grads()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    explicit = Explicit(model, adamw, SIGMA)
    if MODES[mode] is not None:
        explicit.carrier.enable_input_require_grads()
    optimizer = adamw(model)
    names = list(model.state_dict())
    noise = perturb(model, optimizer, SIGMA, seed=SEED, memory=memory)
    words = torch.arange(24).reshape(2, 12)
    for step in range(3):
        ours, theirs = run(model, words, step), run(explicit.carrier, words, step)
        assert same(ours.loss, theirs.loss)
        assert same(ours.logits, theirs.logits)
        expected = dict(explicit.carrier.named_parameters())
        for name, parameter in model.named_parameters():
            assert same(parameter.grad, expected[name].grad), name
        optimizer.step()
        optimizer.zero_grad()
        explicit.step()
    zs = dict(explicit.clean.named_parameters())
    assert all(same(p, zs[name]) for name, p in model.named_parameters())
    assert list(model.state_dict()) == names
    assert noise.step_count == 3
    model.eval()
    with torch.no_grad():
        clean = explicit.at_z().eval()(input_ids=words).logits
        assert same(model(input_ids=words).logits, clean)
        assert not same(model.train()(input_ids=words).logits, clean)
    model.eval()
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones(1, 5)}
    generated = model.generate(words[:1, :5], **options)
    assert same(generated, explicit.at_z().eval().generate(words[:1, :5], **options))


def test_a_saved_model_is_clean(tmp_path):
    torch.manual_seed(0)
    model = gpt2().train()
    optimizer = adamw(model)
    perturb(model, optimizer, SIGMA, seed=SEED)
    words = torch.arange(24).reshape(2, 12)
    for step in range(2):
        run(model, words, step)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path)
    theirs = dict(again.named_parameters())
    assert all(same(p, theirs[name]) for name, p in model.named_parameters())
