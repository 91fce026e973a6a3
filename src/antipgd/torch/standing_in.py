"""A small copy of an optimizer on parameters of its own, to see how it steps.

By `vars()`: `copy.deepcopy` of an optimizer keeps groups and state and loses all other attributes.
Nothing of the user's is changed or read, no random number of theirs is used, no rank is asked:
what would do so is refused as `UnprobedError`. Knows optimizers, not noise.
"""

import copy
import random
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import TorchDispatchMode

GROUPS = 8  # of the first so many param groups, a tensor of each number of axes
WIDTH = 4  # of an axis of a stand-in
HEAVY = 4096  # elements of a tensor that is not copied
RATE = 0.01  # not the group's own, which a warm-up may begin at 0


class UnprobedError(Exception):
    """The optimizer cannot be tried on stand-ins."""


class StandIn:
    """A copy of an optimizer (and of all that it wraps) on a few small parameters."""

    def __init__(self, optimizer: Any, keeps_state: bool) -> None:
        self._keeps_state = keeps_state
        self._memo: dict[int, Any] = {}
        self._kept: dict[int, Tensor] = {}
        users = [p for group in optimizer.param_groups for p in group["params"]]
        for group in optimizer.param_groups[:GROUPS]:
            self._kept |= _chosen(group["params"])
        if not self._kept:
            raise UnprobedError("it has no parameters")
        self.parameters = [_small(p, i) for i, p in enumerate(self._kept.values())]
        own = dict(zip(self._kept, self.parameters, strict=True))
        self._memo = {id(p): own.get(id(p), self.parameters[0]) for p in users}
        self._users = _places(users)
        self.optimizer = self._cloned(optimizer)
        for group in self.optimizer.param_groups:
            _set_plain(group)

    def of(self, optimizer: Any) -> Any:
        """What stands in for an optimizer that the probed one wraps, or for itself."""
        return self._memo[id(optimizer)]

    def _cloned(self, optimizer: Any) -> Any:
        if id(optimizer) in self._memo:
            return self._memo[id(optimizer)]
        clone = self._memo[id(optimizer)] = object.__new__(type(optimizer))
        for name, value in vars(optimizer).items():
            if callable(value) and hasattr(type(optimizer), name):
                continue  # such as the `step` that a scheduler has put over the class's own
            vars(clone)[name] = self._copied(name, value)
        return clone

    def _copied(self, name: str, value: Any) -> Any:
        if isinstance(value, Optimizer):
            return self._cloned(value)
        if "_hooks" in name:
            return OrderedDict()
        if name == "param_groups":
            return self._groups(value)
        if name == "state" and isinstance(value, Mapping):
            return self._state(value)
        _refuse_heavy(name, value)
        return copy.deepcopy(value, self._memo)

    def _groups(self, groups: Sequence[dict]) -> list[dict]:
        if id(groups) not in self._memo:  # one list, and one dictionary, may be in several places
            kept = [group for group in groups if any(id(p) in self._kept for p in group["params"])]
            self._memo[id(groups)] = [self._group(group) for group in kept]
        return self._memo[id(groups)]

    def _group(self, group: dict) -> dict:
        if id(group) not in self._memo:
            places = [i for i, p in enumerate(group["params"]) if id(p) in self._kept]
            lists = {
                name: [group[name][i] for i in places]
                for name in ("params", "param_names")
                if group.get(name)
            }
            self._memo[id(group)] = copy.deepcopy({**group, **lists}, self._memo)
        return self._memo[id(group)]

    def _state(self, state: Mapping) -> dict:
        found: dict = defaultdict(dict)
        for key, entry in state.items() if self._keeps_state else ():
            if not isinstance(key, Tensor):
                _refuse_heavy(str(key), entry)
                found[key] = copy.deepcopy(entry, self._memo)
            elif id(key) in self._kept:
                found[self._memo[id(key)]] = {k: _cut(v, key) for k, v in entry.items()}
        return found

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, the copy may step: with equal seeds each time, and unheard by anyone else."""
        if _foreign_hooks():
            raise UnprobedError("hooks of all optimizers would see it")
        with _own_generators(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.compiler.set_stance("force_eager"):  # a compilation takes seconds
                yield

    def step(self, closure: Callable[[], Tensor] | None) -> None:
        """One step with zero gradients."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        with _Alone(self._users):
            self.optimizer.step(*([] if closure is None else [closure]))


def _foreign_hooks() -> bool:
    """Whether anybody but us looks at the steps of all optimizers."""
    hooks = [
        *torch_optimizer._global_optimizer_pre_hooks.values(),
        *torch_optimizer._global_optimizer_post_hooks.values(),
    ]
    return any(not getattr(hook, "__module__", "").startswith("antipgd.") for hook in hooks)


class _Alone(TorchDispatchMode):
    """Refuses operations on the user's own tensors, and messages to other ranks."""

    def __init__(self, users: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._users = users

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence = (), kwargs: Any = None
    ) -> Any:
        if "c10d" in func.namespace:
            raise UnprobedError("its step asks other ranks")
        for value in args:
            for tensor in value if type(value) in (list, tuple) else (value,):
                if isinstance(tensor, Tensor) and _address(tensor) in self._users:
                    raise UnprobedError("its copy still holds the original's parameters")
        return func(*args, **(kwargs or {}))


@contextmanager
def _own_generators() -> Iterator[None]:
    """Inside, the generators of the CPU begin at one place; after, they are as they were."""
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # torch.manual_seed also seeds all devices
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002


def _chosen(parameters: Sequence[Tensor]) -> dict[int, Tensor]:
    """One parameter for each number of axes."""
    by_axes: dict[int, Tensor] = {}
    for parameter in parameters:
        by_axes.setdefault(parameter.dim(), parameter)
    return {id(parameter): parameter for parameter in by_axes.values()}


def _small(parameter: Tensor, seed: int) -> Tensor:
    shape = [min(size, WIDTH) for size in parameter.shape]
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu").to(parameter.dtype)
    small = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
    plain = {k: v for k, v in vars(parameter).items() if isinstance(v, bool | int | float | str)}
    vars(small).update(plain)  # by which some optimizers tell parameters apart
    return small


def _cut(value: Any, like: Tensor) -> Any:
    """What a state keeps, cut to the size of a stand-in of `like`."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if value.shape == like.shape:
        value = getattr(value, "_local_tensor", value)[tuple(slice(WIDTH) for _ in value.shape)]
    elif value.numel() > HEAVY:
        raise UnprobedError("its state is not of its parameters' shapes")
    return value.detach().cpu().clone()


def _set_plain(group: dict) -> None:
    for name in group:
        if name == "wd" or name.startswith("weight_decay"):
            group[name] = 0.0
    rate = group.get("lr")
    if rate is not None:
        group["lr"] = torch.full_like(rate, RATE) if isinstance(rate, Tensor) else RATE


def _refuse_heavy(name: str, value: Any) -> None:
    rows = value.values() if isinstance(value, Mapping) else value
    inside = rows if isinstance(value, Mapping | list | tuple) else [value]
    for item in inside:
        tensors = item.state_dict().values() if isinstance(item, torch.nn.Module) else [item]
        size = sum(t.numel() for t in tensors if isinstance(t, Tensor))
        if size > HEAVY and not isinstance(item, torch.nn.Parameter):
            raise UnprobedError(f"its {name} has {size} elements")


def _address(tensor: Tensor) -> int:
    """Where the values lie; 0 for what has no memory of its own, such as a DTensor."""
    plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    return tensor.data_ptr() if plain and not tensor.is_meta else 0


def _places(users: Sequence[Tensor]) -> set[int]:
    """Where the user's parameters lie."""
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in users]
    return {_address(tensor) for tensor in local} - {0}
