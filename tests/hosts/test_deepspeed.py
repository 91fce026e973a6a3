"""DeepSpeed: ZeRO stage 0 works, stages 1 to 3 keep flattened parameters and are refused.

Perturb after `initialize`, with the engine's module and optimizer; one process, on the CPU.
"""

import socket
import sys

import deepspeed
import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel

from antipgd.torch import noise_of, perturb
from matrix import cell, refused
from small_training import (
    NOISE,
    SIGMA,
    batches,
    check_explicit,
    check_same,
    explicit,
    momentum,
    network,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # DeepSpeed's, of torch.distributed
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
DATA = batches(12)


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free:
        free.bind(("localhost", 0))
        for name, value in {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free.getsockname()[1]), "DS_ACCELERATOR": "cpu",
            "GLOO_SOCKET_IFNAME": "lo",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        free.close()
        own = sys.modules["deepspeed.comm.torch"]
        patch.setattr(own, "build_shm_op", lambda: None)  # compiled for minutes, and not needed
        linear = torch.nn.functional.linear
        patch.setattr(torch.nn.functional, "linear", linear)  # ZeRO 3 replaces it for everybody
        deepspeed.init_distributed("gloo")
        yield
        torch.distributed.destroy_process_group()


def started(model, stage=0, accumulated=1):
    """The engine as `deepspeed.initialize` makes it."""
    settings = {
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": accumulated,
        "gradient_clipping": 0.0, "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    return deepspeed.initialize(model=model, optimizer=momentum(model), config=settings)[0]


class Run:
    def __init__(self, seed=0, **options):
        self.engine = started(network(seed), **options)
        self.noise = perturb(self.engine.module, self.engine.optimizer, **NOISE)

    def train(self, data):
        self.engine.train()
        for x, y in data:
            self.engine.backward(mse_loss(self.engine(x), y))
            self.engine.step()
        return self


@cell("deepspeed", "resume")
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    whole = Run().train(DATA)
    Run().train(DATA[:5]).engine.save_checkpoint(str(tmp_path))
    other = Run(seed=9)
    other.engine.load_checkpoint(str(tmp_path))
    assert other.noise.step_count == 5
    other.train(DATA[5:])
    check_same(other.engine.module, whole.engine.module)
    check_explicit(other.engine.module, DATA)


@cell("deepspeed", "evaluation")
def test_evaluation_is_at_the_clean_weights():
    run, x = Run(), DATA[0][0]
    for _ in range(2):
        run.train(DATA[:4])
        plain = network(9)
        plain.load_state_dict(run.engine.module.state_dict())
        run.engine.eval()
        with torch.no_grad():
            assert torch.equal(run.engine(x), plain(x))
            run.engine.train()
            assert not torch.equal(run.engine(x), plain(x))


@cell("deepspeed", "weights")
def test_saved_weights_are_clean(tmp_path):
    run = Run().train(DATA)
    run.engine.save_16bit_model(str(tmp_path), "weights.bin")
    check_explicit(torch.load(tmp_path / "weights.bin"), DATA)
    check_explicit(run.engine.module_state_dict(), DATA)


@cell("deepspeed", "accumulation")
def test_accumulated_batches_are_one_step():
    run = Run(accumulated=3).train(DATA)
    assert run.noise.step_count == 4
    check_explicit(run.engine.module, DATA, accumulated=3)


@cell("deepspeed", "averages")
def test_an_average_is_one_of_clean_weights():
    """DeepSpeed has none; torch's own."""
    run = Run()
    average, expected = AveragedModel(run.engine.module), AveragedModel(network())
    for n in range(len(DATA)):
        average.update_parameters(run.train(DATA[n : n + 1]).engine.module)
        expected.update_parameters(explicit(DATA[: n + 1]).clean)
    check_same(average.module, expected.module)


@cell("deepspeed", "bad_input")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_flattened_parameters(stage, record_property):
    engine = started(network(), stage)
    words = "partitioned by DeepSpeed's ZeRO-3" if stage == 3 else "DeepSpeed's ZeRO has put"
    with refused(record_property, (TypeError, ValueError), words):
        perturb(engine.module, engine.optimizer, SIGMA)


@cell("deepspeed", "bad_input")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_flattened_after_perturb(stage, record_property):
    """Refused in the first step, before the weights move."""
    model = network()
    optimizer = momentum(model)
    perturb(model, optimizer, **NOISE)
    settings = {
        "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    x, y = DATA[0]
    words = "read without noise" if stage == 3 else "DeepSpeed's ZeRO has put"
    with refused(record_property, (RuntimeError, ValueError), words):
        engine.backward(mse_loss(engine(x), y))
        engine.step()
    if stage < 3:  # whose weights are not in the model
        check_same(model, network())


@cell("deepspeed", "bad_input")
def test_a_wrong_sigma(record_property):
    engine = started(network())
    with refused(record_property, ValueError, "sigma must be a finite number >= 0"):
        perturb(engine.module, engine.optimizer, float("nan"))
    assert noise_of(engine.optimizer) is None
    check_same(engine.module, network())
