"""A training is what its spec says: against plain loops, and nothing beside it is disturbed."""

import csv
import math
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from antipgd.cli import main
from antipgd.noise import draws
from antipgd.paper.networks import evaluate, gradients, machine
from antipgd.paper.networks.checkpoint import Checkpoints
from antipgd.paper.networks.evaluate import Evaluator, barrier, loss_and_accuracy, weights_of
from antipgd.paper.networks.examples import corrupted, epoch_order, make_examples
from antipgd.paper.networks.gradients import backward, micro_batches, sam_backward
from antipgd.paper.networks.logs import TensorBoardLog
from antipgd.paper.networks.machine import bytes_for_backward
from antipgd.paper.networks.models import make_network
from antipgd.paper.networks.ranks import Ranks
from antipgd.paper.networks.spec import make_training
from antipgd.paper.networks.train import train
from antipgd.torch import attach


def spec(method="anti", model="cnn", **changes):
    values = {"batch": 50, "epochs": 3, "seed": 0, "images": 200, "width": 4, "sigma": 0.02}
    return make_training("digits", model, method, **(values | changes))


def places(record, epoch):
    return [row[1] for row in record.points if row[0] == epoch]


def last_weights(tmp_path, run, name="clean-at-end"):
    return torch.load(tmp_path / run.name / f"{name}.pt", weights_only=True)


# Against plain loops


def half_square(outputs, labels):
    """One image after another, one class after another."""
    total = 0.0
    for output, label in zip(outputs, labels.tolist(), strict=True):
        for k, value in enumerate(output):
            total = total + (value - float(k == label)) ** 2 / 2
    return total / len(labels)


def by_hand(run, examples):
    """Weights, and clean weights, of a training without BatchNorm, written out."""
    loss = half_square if run.loss == "squared" else cross_entropy
    network = make_network(run.model, run.width, examples.shape, examples.classes, run.seed)
    weights = dict(network.named_parameters())
    images, truth = examples.train
    velocity = {name: torch.zeros_like(p) for name, p in weights.items()}
    carried = {name: torch.zeros_like(p) for name, p in weights.items()}
    n = 0

    def gradients(rows, labels):
        network.zero_grad()
        loss(network(images[rows]), labels[rows]).backward()
        return {name: p.grad.clone() for name, p in weights.items()}

    for epoch in range(1, run.epochs + 1):
        order, labels = epoch_order(run.seed, epoch, len(truth)), truth
        if run.method == "label":
            labels = corrupted(truth, run.sigma, 10, run.seed, epoch)
        for rows in order[: len(order) // run.batch * run.batch].reshape(-1, run.batch):
            n += 1
            g = gradients(rows, labels)
            if run.method == "sam":
                length = math.sqrt(sum(float((a**2).sum()) for a in g.values()))
                kept = {name: p.detach().clone() for name, p in weights.items()}
                with torch.no_grad():
                    for name, p in weights.items():
                        p += run.sigma * g[name] / length
                g = gradients(rows, labels)
                with torch.no_grad():
                    for name, p in weights.items():
                        p.copy_(kept[name])
            for name, p in weights.items():
                velocity[name] = run.momentum * velocity[name] + g[name]
                with torch.no_grad():
                    p -= run.lr * velocity[name]
                    for j, tap in enumerate(run.taps):
                        xi = draws(run.seed, name, n - j, 0, p.numel()) if n > j else 0 * p.numpy()
                        eps = run.sigma * tap * torch.as_tensor(xi).view(p.shape)
                        p += eps
                        carried[name] += eps
    clean = sum(run.taps) == 0
    return {name: p.detach() - (carried[name] if clean else 0) for name, p in weights.items()}


@pytest.mark.parametrize("method", ["gd", "anti", "pgd", "label", "sam"])
def test_each_method_is_what_a_plain_loop_computes(method, tmp_path):
    run = spec(method, "mlp", sigma=0.3 if method == "label" else 0.02)
    assert train(run, tmp_path).status == "ok"
    found = last_weights(tmp_path, run)
    for name, expected in by_hand(run, make_examples(run)).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("taps", [(1, -0.5), (1, -2, 1), (0.5, 0.5), (1,)])
def test_noise_of_any_taps_is_what_a_plain_loop_computes(taps, tmp_path):
    run = spec("noise", "mlp", taps=taps)
    record = train(run, tmp_path)
    assert places(record, 3) == ["running", "w", "z"] if sum(taps) == 0 else ["running", "w"]
    found = last_weights(tmp_path, run)
    for name, expected in by_hand(run, make_examples(run)).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["anti", "label", "sam"])
def test_methods_on_the_squared_loss(method, tmp_path):
    run = spec(method, "mlp", loss="squared", epochs=2, sigma=0.3 if method == "label" else 0.02)
    assert train(run, tmp_path).status == "ok"
    found = last_weights(tmp_path, run)
    for name, expected in by_hand(run, make_examples(run)).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


def test_methods_differ_only_by_their_noise():
    """They share data, start and order, so before the noise begins they are equal bit for bit."""
    gd = train(spec("gd", measure=(0, 1, 2)))
    anti = train(spec(measure=(0, 1), noise_start=2))
    before = [row for row in gd.points if row[0] <= 2]
    assert [row[2:4] for row in anti.points if row[0] <= 2] == [row[2:4] for row in before]
    assert anti.points[-1] != gd.points[-1]


def test_the_order_of_an_epoch():
    orders = [epoch_order(seed, epoch, 1000) for seed in (0, 1) for epoch in (1, 2)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(1000))
    assert len({tuple(order.tolist()) for order in orders}) == 4
    mean = np.mean([epoch_order(0, e, 100).numpy() for e in range(1, 401)], axis=0)
    assert np.abs(mean - 49.5).max() < 4.5 * 28.9 / 20


def test_corrupted_labels():
    labels = torch.arange(50_000) % 10
    found = corrupted(labels, 0.4, 10, seed=3, epoch=1)
    changed = float((found != labels).double().mean())
    assert changed == pytest.approx(0.4 * 0.9, abs=4 * math.sqrt(0.36 * 0.64 / 50_000))
    counts = torch.bincount(found[found != labels], minlength=10).double()
    assert float(counts.std() / counts.mean()) < 0.1
    assert not torch.equal(found, corrupted(labels, 0.4, 10, seed=3, epoch=2))
    assert torch.equal(corrupted(labels, 0.0, 10, seed=3, epoch=1), labels)


def small_batch(count=12):
    run = spec(images=200)
    examples = make_examples(run)
    images, labels = examples.train
    network = make_network("cnn", 4, examples.shape, 10, 0)
    return network, (images[:count], labels[:count])


def test_a_batch_in_micro_batches_has_statistics_for_each():
    network, batch = small_batch()
    parts = micro_batches(batch, 4)
    assert [len(labels) for _, labels in parts] == [4, 4, 4]
    expected, single = None, make_network("cnn", 4, (1, 8, 8), 10, 0)
    for images, labels in parts:
        single.zero_grad()
        cross_entropy(single(images), labels).backward()
        own = [p.grad / 3 for p in single.parameters()]
        expected = own if expected is None else [a + b for a, b in zip(expected, own, strict=True)]
    loss, right = backward(network, parts, Ranks())
    for p, g in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    torch.testing.assert_close(network.bn1.running_var, single.bn1.running_var)
    assert int(network.bn1.num_batches_tracked) == 3
    assert 0 <= right <= 12
    assert loss > 0
    whole, _ = backward(make_network("cnn", 4, (1, 8, 8), 10, 0), [batch], Ranks())
    assert loss != pytest.approx(whole, rel=1e-4)


def test_sam_keeps_weights_and_the_statistics_of_its_first_pass():
    network, batch = small_batch()
    plain = make_network("cnn", 4, (1, 8, 8), 10, 0)
    assert sam_backward(network, [batch], 0.1, Ranks()) == backward(plain, [batch], Ranks())
    for a, b in zip(network.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(network.linear.weight.grad, plain.linear.weight.grad)


# What is measured


def test_where_it_is_measured():
    record = train(spec(epochs=4, measure=(0, 1), noise_start=1, noise_stop=3))
    both = ["w", "w_bn"]
    assert places(record, 0) == both
    assert places(record, 1) == ["running", *both]
    assert places(record, 2) == ["running"]
    assert places(record, 3) == ["running", *both, "z", "z_bn"]
    assert places(record, 4) == ["running", *both]
    assert places(train(spec("pgd")), 3) == ["running", *both]
    assert places(train(spec("gd", "mlp")), 3) == ["running", "w"]
    assert places(train(spec("anti", "mlp")), 3) == ["running", "w", "z"]


def test_at_the_stop_the_noise_is_taken_out_of_the_weights(tmp_path):
    run = spec(epochs=2, noise_stop=1, momentum=0.0)
    record = train(run, tmp_path)
    at_stop = last_weights(tmp_path, run, "clean-at-stop")
    model = make_network("cnn", 4, (1, 8, 8), 10, 0)
    model.load_state_dict(at_stop)
    examples = make_examples(run)
    loss, _ = loss_and_accuracy(model, examples.train)
    _, values = record.column("train_loss", "z_bn")  # with statistics of these weights
    assert loss == pytest.approx(values[0], rel=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for rows in epoch_order(0, 2, 200).reshape(-1, 50):
        optimizer.zero_grad()
        cross_entropy(model(examples.train[0][rows]), examples.train[1][rows]).backward()
        optimizer.step()
    expected = last_weights(tmp_path, run)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=1e-5)


def test_few_images_are_used_on_the_way_and_all_at_the_turns():
    few = train(spec("gd", measure=(1,), test_images=20))
    accuracies = few.column("test_accuracy", "w")[1]
    assert (accuracies[0] * 20) % 1 == pytest.approx(0)
    every = train(spec("gd", measure=(1,)))
    assert every.column("test_loss", "w")[1][1] == few.column("test_loss", "w")[1][1]
    assert every.column("test_loss", "w")[1][0] != few.column("test_loss", "w")[1][0]


def faces(images):
    """Images whatever they were normalised by."""
    flat = images.flatten(1)
    low, high = flat.min(1, keepdim=True).values, flat.max(1, keepdim=True).values
    return {tuple(face) for face in (16 * (flat - low) / (high - low)).round(decimals=3).tolist()}


def test_validation_images_stand_for_the_test():
    run = spec("gd", validation=True, batch=40)
    examples, whole = make_examples(run), make_examples(spec("gd"))
    assert len(examples.train[1]) == 160
    assert len(examples.test[1]) == 40
    assert torch.bincount(examples.test[1]).tolist() == [4] * 10
    assert len(whole.test[1]) == 355
    ours, held_out, every = map(faces, (examples.train[0], examples.test[0], whole.train[0]))
    assert len(ours | held_out) == len(ours) + len(held_out) == len(every)
    assert ours | held_out == every


def test_measuring_leaves_everything_as_found():
    run = spec(trace_images=30, trace_probes=48)
    examples = make_examples(run)
    model = make_network("cnn", 4, examples.shape, 10, 0)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.05, momentum=0.9)
    noise = attach(optimizer, 0.02, seed=0, model=model)
    backward(model, [(examples.train[0][:50], examples.train[1][:50])], Ranks())
    optimizer.step()
    model.bn1.eval()  # as somebody may have left it
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    states, modes = torch.get_rng_state(), [m.training for m in model.modules()]
    rows = Evaluator(run, model, examples).points(1, noise, weights_of(model), lambda n: None)
    assert [row[1] for row in rows] == ["w", "w_bn", "z", "z_bn"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), states)
    assert [m.training for m in model.modules()] == modes
    assert noise.step_count == 1
    noise.stop()


@pytest.mark.parametrize("kind", ["cross_entropy", "squared"])
def test_traces_are_those_of_the_training_loss_at_z(kind, tmp_path):
    run = spec("anti", "mlp", width=3, epochs=1, trace_images=150, trace_probes=400, loss=kind)
    record = train(run, tmp_path)
    found = dict(zip(run.measures, next(r for r in record.points if r[1] == "z")[2:], strict=True))
    examples, weights = make_examples(run), last_weights(tmp_path, run)
    model = make_network("mlp", 3, examples.shape, 10, 0)
    images, labels = (tensor[:150] for tensor in examples.train)

    def loss(changed):
        outputs = torch.func.functional_call(model, weights | changed, (images,))
        target = torch.nn.functional.one_hot(labels).float()
        squared = 0.5 * (outputs - target).square().sum(1).mean()
        return squared if kind == "squared" else cross_entropy(outputs, labels)

    exact = scaled = 0.0
    for name, value in weights.items():
        n = value.numel()
        block = torch.func.hessian(loss)({name: value})[name][name].reshape(n, n)
        exact += float(block.trace())
        scaled += float(block.trace() * value.square().sum() / n)
    assert abs(found["trace"] - exact) < 4 * found["trace_sem"]
    assert abs(found["scaled_trace"] - scaled) < 4 * found["scaled_trace_sem"]
    assert found["trace_sem"] < exact / 10
    assert found["scaled_trace_sem"] < scaled / 10
    at_w = dict(zip(run.measures, record.points[1][2:], strict=True))
    assert record.points[1][1] == "w"
    assert at_w["trace"] is None


class Hill(torch.nn.Module):
    """Its loss is log(1 + exp(−(1 − w²)·2)) above … a hill between w = −1 and w = 1."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        height = 2 * (1 - self.w**2)
        return torch.stack([-height, height * 0]).expand(len(x), 2)


def test_a_barrier_is_the_height_of_the_hill_above_its_larger_end():
    model, data = Hill(), (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
    start, end = {"w": torch.tensor(-1.0)}, {"w": torch.tensor(1.0)}
    height = math.log(1 + math.exp(2)) - math.log(2)
    assert barrier(model, start, end, data) == pytest.approx(height, rel=1e-6)
    assert barrier(model, start, start, data) == 0
    assert float(model.w.detach()) == pytest.approx(0.3)


def test_a_barrier_of_the_squared_loss():
    model, data = Hill(), (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
    start, end = {"w": torch.tensor(-1.0)}, {"w": torch.tensor(1.0)}
    height = (2 + 1) ** 2 / 2 - 1 / 2  # f = (−2, 0) on top, (0, 0) at the ends, y = (1, 0)
    assert barrier(model, start, end, data, loss="squared") == pytest.approx(height, rel=1e-6)


def test_barriers_are_those_to_the_weights_where_the_noise_begins(tmp_path, monkeypatch):
    """Also if those weights come from the checkpoint of a training that began alike."""
    ends = []

    def distance(model, start, end, data, **options):
        ends.append((start, end))
        return sum(float((start[name] - end[name]).square().sum()) for name in start)

    monkeypatch.setattr(evaluate, "barrier", distance)
    run = spec(epochs=4, measure=(1, 2, 3), noise_start=1, noise_stop=3, barriers=True)
    alone = train(run)
    steps, values = alone.column("barrier", "z_bn")
    assert steps.tolist() == [2, 3]
    assert 0 < values[0] < values[1]
    steps, values = alone.column("barrier", "w_bn")
    assert steps[np.isfinite(values)].tolist() == [4]  # not where the noise begins
    train(run.prefix(), tmp_path)
    state = Checkpoints(tmp_path, run.prefix()).load()["model"]
    assert train(run, tmp_path) == alone
    for start, _ in ends:
        assert all(torch.equal(start[name], state[name]) for name in start)


# What happens around it


def test_a_record_is_a_function_of_its_spec():
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    one = train(spec())
    torch.manual_seed(6)
    assert train(spec()) == one
    assert train(spec(seed=1)).points != one.points
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_memory_format_changes_only_the_last_bits():
    one, other = train(spec()), train(spec(channels_last=False))
    for place in ("w", "z_bn"):
        a, b = one.column("train_loss", place)[1], other.column("train_loss", place)[1]
        np.testing.assert_allclose(a, b, rtol=1e-3)


@pytest.mark.slow
def test_bfloat16_changes_little():
    """In a process of its own: some machines announce AMX but do not allow it (SIGILL)."""
    code = f"""
import json
from antipgd.paper.networks.train import train
from antipgd.paper.networks.spec import Training
for text in ({spec().canonical()!r}, {spec(bf16=True).canonical()!r}):
    print(train(Training.from_plain(json.loads(text))).points[-1][2])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    one, other = map(float, done.stdout.split())
    assert one != other
    assert one == pytest.approx(other, rel=0.01)


@pytest.mark.filterwarnings("ignore:sigma is .* the noise drowns:UserWarning")
@pytest.mark.parametrize("changes", [{"lr": 1e30}, {"sigma": 1e30}], ids=["steps", "noise"])
def test_a_training_that_diverges_is_a_result(changes, tmp_path):
    record = train(spec(**changes), tmp_path)
    assert record.status == "diverged"
    assert record.diverged_at in (1, 2)
    assert record.points[-1][1] == "running"
    assert train(spec(**changes), tmp_path) == record


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")],
)
def test_too_large_a_batch_is_told_what_to_do(error, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setitem(gradients.GRADIENTS, "plain", fail)
    with pytest.raises(MemoryError, match=r"smaller micro that divides batch=50.*BatchNorm"):
        train(spec())


def test_what_a_backward_pass_needs_is_counted_without_computing():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    assert bytes_for_backward(model, (4,), 10) == 4 * 10 * (4 + 3)  # inputs of the two layers
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    network = make_network("resnet18", 8, (3, 16, 16), 10, 0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    ten, twenty, thirty = (bytes_for_backward(network, (3, 16, 16), n) for n in (10, 20, 30))
    assert thirty - twenty == twenty - ten > 0.9 * ten
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_batch_that_cannot_fit_is_refused_before_anything_is_written(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(machine, "memory_left", lambda device: 2**20)
    message = (
        r"50 images at a time need at least .* GiB, and 0.0 GiB are free; give a smaller micro"
    )
    with pytest.raises(MemoryError, match=message):
        train(spec(width=64), tmp_path)
    monkeypatch.setattr(machine, "memory_left", lambda device: 2**21)
    train(spec(width=64, batch=100, micro=5, epochs=1), tmp_path / "parts")  # each fits
    with pytest.raises(MemoryError):
        train(spec(width=64, batch=100, epochs=1), tmp_path)
    monkeypatch.setattr(machine, "memory_left", lambda device: 2**20)
    options = ["--data", "digits", "--method", "gd", "--batch", "50", "--width", "64"]
    assert main(["train", *options, "--epochs", "1", "--out", str(tmp_path)]) == 1
    assert re.match(f"antipgd: {message}", capsys.readouterr().err)
    assert not list(tmp_path.glob("*/*.pt"))


def test_memory_left_is_in_bytes_and_knows_containers(monkeypatch, tmp_path):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert total / 1000 < machine.memory_left("cpu") <= total
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    assert machine.memory_left("cpu") == 2500
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory_left("cpu") > 5000


def test_an_error_without_words_is_not_taken_for_a_lack_of_memory(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError

    monkeypatch.setitem(gradients.GRADIENTS, "plain", fail)
    with pytest.raises(RuntimeError, match=r"^$"):
        train(spec())


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("shapes do not match")

    monkeypatch.setitem(gradients.GRADIENTS, "plain", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(spec())


def test_a_batch_that_validation_leaves_no_images_for_is_refused():
    with pytest.raises(ValueError, match="batch=180 exceeds the 160 images left for training"):
        train(spec(batch=180, validation=True))


def test_the_log_has_a_row_for_each_point(tmp_path):
    run = spec(measure=(1,))
    record = train(run, tmp_path)
    with (tmp_path / run.name / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["epoch"]), row["place"]) for row in rows] == [p[:2] for p in record.points]
    assert [float(row["train_loss"]) for row in rows] == [p[2] for p in record.points]
    assert rows[0]["trace"] == ""


def test_tensorboard_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoardLog(tmp_path)


class Writer:
    """What is used of TensorBoard's."""

    def __init__(self, folder):
        self.scalars = []
        Writer.last = self

    def add_scalar(self, *scalar):
        self.scalars.append(scalar)

    def flush(self):
        pass


def test_a_log_hears_of_every_point(tmp_path, monkeypatch, capsys):
    module = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    run = spec("gd")
    with tqdm(total=3) as bar:
        record = train(run, tmp_path, tick=bar.update, log=TensorBoardLog(tmp_path, bar))
    heard = {(name, epoch): value for name, value, epoch in Writer.last.scalars}
    assert heard["train_loss/running", 1] == record.points[0][2]
    assert heard["test_accuracy/w_bn", 3] == record.points[-1][5]
    assert ("trace/w", 3) not in heard
    assert "3/3 [" in (shown := capsys.readouterr().err)
    assert f"loss={record.points[2][2]:.4g}" in shown
    first = Writer.last.scalars
    train(run, tmp_path, log=TensorBoardLog(tmp_path))
    assert Writer.last.scalars == first  # those of a finished training, again


def test_other_optimizers_and_noise_without_norms(tmp_path):
    record = train(spec(optimizer="adamw", lr=0.001, weight_decay=0.01, noisy="no_norms"))
    assert record.status == "ok"
    run = spec(noisy="no_norms", epochs=1)
    train(run, tmp_path)
    state = Checkpoints(tmp_path, run).load()
    at_end = last_weights(tmp_path, run)
    moved = {name for name, w in state["model"].items()
             if "running" not in name and not torch.equal(w, at_end[name])}  # fmt: skip
    assert moved == {"conv1.weight", "conv2.weight", "linear.weight", "linear.bias"}


# Without BatchNorm


@pytest.mark.parametrize("norm", ["group", "none"])
def test_other_norms_have_one_row_a_place_and_learn(norm):
    run = spec("anti", norm=norm, images=500, epochs=30, width=8, noise_stop=25)
    record = train(run)
    assert places(record, 25) == ["running", "w", "z"]
    assert record.column("test_accuracy", "w")[1][-1] > 0.6


def test_no_norms_leaves_out_group_norm(tmp_path):
    run = spec(noisy="no_norms", norm="group", epochs=1)
    train(run, tmp_path)
    state, at_end = Checkpoints(tmp_path, run).load(), last_weights(tmp_path, run)
    moved = {name for name, w in state["model"].items() if not torch.equal(w, at_end[name])}
    assert moved == {"conv1.weight", "conv2.weight", "linear.weight", "linear.bias"}


# Stopping at a loss


def test_it_stops_after_the_first_measured_epoch_with_that_loss(tmp_path):
    settings = {"epochs": 12, "measure": range(13), "test_images": 20, "lr": 0.2}
    whole = train(spec("gd", **(settings | {"test_images": None})))
    losses = dict(zip(*whole.column("train_loss", "w_bn"), strict=True))
    wanted = (losses[7] + min(losses[e] for e in range(1, 7))) / 2
    assert losses[7] < wanted < min(losses[e] for e in range(1, 7)), "choose another epoch"
    run = spec("gd", stop_at_loss=float(wanted), **settings)
    record = train(run, tmp_path)
    assert record.status == "ok"
    assert record.points[-1][0] == 7
    for row in record.points:  # measured on all images, though few were asked for
        assert row in whole.points
    assert (tmp_path / run.name / "clean-at-end.pt").exists()
    assert train(run, tmp_path) == record  # and it does not go on when asked again
    sparse = spec("gd", stop_at_loss=float(wanted), **(settings | {"measure": (3, 9)}))
    assert train(sparse).points[-1][0] == 9
    never = train(spec("gd", stop_at_loss=0.0, **(settings | {"epochs": 2, "measure": ()})))
    assert never.points[-1][0] == 2


def test_it_stops_by_the_loss_at_the_clean_weights(tmp_path):
    run = spec("anti", "mlp", sigma=0.1, epochs=3, measure=(1, 2, 3), momentum=0.0)
    rows = {(row[0], row[1]): row[2] for row in train(run).points}
    assert rows[1, "z"] < rows[1, "w"]
    between = (rows[1, "z"] + rows[1, "w"]) / 2
    stopped = spec("anti", "mlp", sigma=0.1, epochs=3, measure=(1, 2, 3), momentum=0.0,
                   stop_at_loss=between)  # fmt: skip
    assert train(stopped, tmp_path).points[-1][0] == 1


def test_the_command_says_where_it_stopped(tmp_path, capsys):
    options = ["--data", "digits", "--method", "gd", "--batch", "50", "--width", "4", "--images",
               "200", "--epochs", "3", "--measure-every", "1", "--stop-at-loss", "9", "--schedule",
               "cosine", "--warmup", "1", "--augment", "flip"]  # fmt: skip
    assert main(["train", *options, "--out", str(tmp_path)]) == 0
    assert "stopped after epoch 1: its training loss is low enough" in capsys.readouterr().out


def test_a_loss_to_stop_at_is_a_number():
    with pytest.raises(ValueError, match="stop_at_loss must be a finite number >= 0; got -1"):
        spec(stop_at_loss=-1)
