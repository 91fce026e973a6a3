"""A measurement leaves no trace: whatever it changes is put back bit for bit, also after an error.

Training modes, buffers, random number generators, `requires_grad`, gradients and, for the float64
option, the tensors' storage. Knows nothing of what is measured in between.
"""

import random
import threading
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same elements, nan being the same as nan."""
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def generator_states() -> list[object]:
    """Of Python's, NumPy's and torch's global generators, to be compared."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    states: list[object] = [random.getstate(), str(numpy), torch.get_rng_state().numpy().tobytes()]
    if torch.cuda.is_initialized():
        states += [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return states


@contextmanager
def kept_generators(own: Iterable[torch.Generator] = ()) -> Generator[None]:
    """Python's, NumPy's and torch's global generators, on all devices, as they were found.

    And the given ones, such as a DataLoader's.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    others = [(generator, generator.get_state()) for generator in own]
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        for generator, state in others:
            generator.set_state(state)


class _Kept:
    """The state of one module, without its children."""

    def __init__(self, part: nn.Module) -> None:
        self.part, self.training, self.buffers = part, part.training, dict(part._buffers)
        self.values = {key: b.detach().clone() for key, b in self.buffers.items() if b is not None}
        if isinstance(part, DistributedDataParallel):
            # It would wait for a backward pass, and for ranks that take fewer products.
            self.syncs = part.require_backward_grad_sync, part.require_forward_param_sync
            part.require_backward_grad_sync = part.require_forward_param_sync = False

    def put_back(self) -> None:
        part = self.part
        part.training = self.training
        part._buffers.clear()
        part._buffers.update(self.buffers)
        for key, value in self.values.items():
            # Batch norm writes its statistics without counting that as a version (ran).
            if not same_values(part._buffers[key], value):  # type: ignore[arg-type]
                with torch.no_grad():
                    part._buffers[key].copy_(value)  # type: ignore[union-attr]
        if isinstance(part, DistributedDataParallel):
            part.require_backward_grad_sync, part.require_forward_param_sync = self.syncs


@contextmanager
def kept_modules(known: Iterable[nn.Module]) -> Generator[dict[nn.Module, _Kept]]:
    """Modes and buffers as they were found; a buffer that was only read is not written.

    Of the known modules and of every other one that is called inside: with tensors in place of a
    module nobody says which modules the loss uses.
    """
    kept = {part: _Kept(part) for part in known}
    thread = threading.get_ident()

    def keep(part: nn.Module, arguments: object) -> None:
        stateful = isinstance(part, _BatchNorm | DistributedDataParallel) or any(
            buffer is not None for buffer in part._buffers.values()
        )
        if stateful and part not in kept and threading.get_ident() == thread:
            kept[part] = _Kept(part)

    hook = register_module_forward_pre_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()
        for part in kept.values():
            part.put_back()


@contextmanager
def evaluating(module: nn.Module | None) -> Generator[None]:
    """A module, if there is one, in evaluation mode; after, each of its parts in its own mode."""
    modes = [(part, part.training) for part in (() if module is None else module.modules())]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def kept_tensors(tensors: Iterable[Tensor]) -> Generator[None]:
    """`requires_grad` and `grad` as they were found; inside, all of them require gradients."""
    found = [(t, t.requires_grad, t.grad) for t in tensors]
    gradients = [None if grad is None else (grad._version, grad.clone()) for *_, grad in found]
    try:
        for tensor, *_ in found:
            tensor.requires_grad_(True)
        yield
    finally:
        for (tensor, required, grad), kept in zip(found, gradients, strict=True):
            if tensor.is_leaf:
                tensor.requires_grad_(required)
            tensor.grad = grad
            if grad is not None and kept is not None and grad._version != kept[0]:
                with torch.no_grad():
                    grad.copy_(kept[1])


@contextmanager
def in_float64(tensors: Iterable[Tensor]) -> Generator[None]:
    """Floating tensors in float64 inside; their own storage comes back after."""
    found = [(t, t.data, t.grad) for t in tensors if t.is_floating_point()]
    try:
        for tensor, data, _ in found:
            tensor.grad = None
            tensor.data = data.double()
        yield
    finally:
        for tensor, data, grad in found:
            tensor.data = data
            tensor.grad = grad


def all_in_float64(module: nn.Module | None, tensors: list[Tensor]) -> AbstractContextManager[None]:
    """The tensors, and the frozen parameters and the buffers beside them."""
    owned = [] if module is None else [*module.parameters(), *module.buffers()]
    return in_float64({id(tensor): tensor for tensor in (*tensors, *owned)}.values())


@contextmanager
def attention_as_written() -> Generator[None]:
    """Transformers in evaluation mode without their fast path, which is taken for values only.

    It computes other numbers at masked places than what is differentiated: values and derivatives
    would be of two functions.
    """
    found = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(found)


@contextmanager
def undisturbed(
    module: nn.Module | None,
    tensors: list[Tensor],
    float64: bool = False,
    generators: Iterable[torch.Generator] = (),
    called: Iterable[nn.Module] = (),
) -> Generator[dict[nn.Module, _Kept]]:
    """Everything above, with gradients and full precision whatever the caller has switched on.

    `called` are modules beside the first that are known to be called. Gives those that have been
    so far. Attention uses its plain formula inside: the fused kernels have no second derivative.
    """
    known = [*(() if module is None else module.modules()), *called]
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in {"cpu", *(tensor.device.type for tensor in tensors)}:
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(attention_as_written())
        stack.enter_context(kept_generators(generators))
        if float64:
            stack.enter_context(all_in_float64(module, tensors))
        kept = stack.enter_context(kept_modules(dict.fromkeys(known)))
        stack.enter_context(kept_tensors(tensors))
        yield kept
