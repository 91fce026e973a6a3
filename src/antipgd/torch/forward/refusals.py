"""What noise in the forward pass cannot work with, refused by name before anything changes."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from antipgd.torch.forward.forming import NARROW, WIDE
from antipgd.torch.parts import is_sharded
from antipgd.torch.stepping import refuse_unheard

_OLD_NORMS = {
    "WeightNorm": "torch.nn.utils.weight_norm",
    "SpectralNorm": "torch.nn.utils.spectral_norm",
}


def check_model(model: object) -> None:
    """Refuse what is no module, and modules that read their weights where nobody can see it."""
    if not isinstance(model, Module):
        several = "; of several make torch.nn.ModuleList(…)" if isinstance(model, list) else ""
        raise TypeError(f"perturb needs a torch.nn.Module; got {type(model).__name__}{several}")
    for name, module in model.named_modules():
        _check_module(name or "the model", module)
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise TypeError(
                f"parameter {name!r} is partitioned by DeepSpeed's ZeRO-3, which has its elements "
                f"elsewhere; use ZeRO stage 0, or fully_shard (FSDP2)"
            )


def _check_module(name: str, module: Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(f"{name} is a ScriptModule, whose weights Python does not read")
    if isinstance(module, torch.nn.DataParallel):
        raise TypeError(
            f"{name} is a torch.nn.DataParallel, whose replicas would be without noise; use "
            f"DistributedDataParallel"
        )
    if type(module).__name__ == "FullyShardedDataParallel":
        raise TypeError(f"{name} is FSDP1, which flattens its parameters; use fully_shard (FSDP2)")
    if getattr(module, "max_norm", None) is not None and hasattr(module, "embedding_dim"):
        raise TypeError(
            f"{name} has max_norm={module.max_norm}: it writes its weights while it reads them; "
            f"perturb without it"
        )
    for hook in module._forward_pre_hooks.values():
        old = _OLD_NORMS.get(type(hook).__name__)
        if old and type(hook).__module__.startswith("torch.nn.utils"):
            new = old.replace("utils.", "utils.parametrizations.")
            raise TypeError(
                f"{name} has {old}, which reads weights before a pass is open; use {new}"
            )


def check_optimizers(given: object) -> list[Optimizer]:
    """One or several optimizers as a list; a container's own ones."""
    found = _unwrapped(given)
    if not found:
        raise ValueError("perturb needs at least one optimizer; got none")
    for optimizer in found:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"perturb needs a torch.optim.Optimizer or several; got {type(optimizer).__name__}"
            )
        refuse_unheard(optimizer)
        if not _has_hooks(optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} does not call Optimizer.__init__, so nobody can hear "
                f"of its steps"
            )
    if len({id(optimizer) for optimizer in found}) < len(found):
        raise ValueError("an optimizer is listed twice")
    return found


def _unwrapped(given: object) -> list:
    several = getattr(given, "optimizers", None)
    if isinstance(several, list | tuple):
        return [one for inner in several for one in _unwrapped(inner)]
    if isinstance(given, dict):
        return [one for inner in given.values() for one in _unwrapped(inner)]
    if isinstance(given, Iterable) and not isinstance(given, Optimizer | str):
        return [one for inner in given for one in _unwrapped(inner)]
    inner = getattr(given, "optimizer", getattr(given, "base", None))
    if inner is not None and not _has_hooks(given):
        return _unwrapped(inner)  # a wrapper, such as Accelerate's, whose inner one makes the steps
    return [given]


def _has_hooks(optimizer: object) -> bool:
    """Whether it is an Optimizer all through: some do not call Optimizer.__init__."""
    needed = ("_optimizer_step_post_hooks", "_optimizer_state_dict_post_hooks")
    return all(hasattr(optimizer, name) for name in needed)


def check_owned(model: Module, optimizers: Sequence[Optimizer]) -> None:
    """Refuse parameters that are not the model's, or that two optimizers have."""
    names = {id(p): name for name, p in model.named_parameters()}
    seen: dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise ValueError(
                        f"optimizer {number} has a parameter of shape {tuple(parameter.shape)} "
                        f"that is not in the model; {_way_out(model)}"
                    )
                if seen.setdefault(id(parameter), number) != number:
                    raise ValueError(
                        f"optimizers {seen[id(parameter)]} and {number} both have "
                        f"{names[id(parameter)]!r}"
                    )


def _way_out(model: Module) -> str:
    """What to do about an optimizer that has parameters of its own."""
    if any(hasattr(p, "_hp_mapping") or hasattr(p, "ds_id") for p in model.parameters()):
        return (
            "DeepSpeed's ZeRO has put flattened ones in the place of the model's: use ZeRO stage "
            "0, or fully_shard (FSDP2)"
        )
    return (
        "give perturb the optimizer that was made for this very model, or the module that reads it "
        "too, such as torch.nn.ModuleList([model, loss])"
    )


def check_readable(name: str, parameter: Tensor) -> None:
    """Refuse a parameter whose w cannot be made."""
    if isinstance(parameter, UninitializedParameter):
        raise TypeError(f"parameter {name!r} has no shape yet; call the model once before perturb")
    if parameter.is_meta:
        raise TypeError(
            f"parameter {name!r} is on the meta device, where it has no values; perturb after "
            f"model.to_empty(device=…) and its initialisation"
        )
    if type(parameter).__name__ == "FlatParameter" or hasattr(parameter, "ds_id"):
        raise TypeError(
            f"parameter {name!r} is flattened (FSDP1, DeepSpeed): its elements are lost"
        )
    kinds = (type(parameter), type(parameter.data))
    own = [kind for kind in kinds if kind.__module__.startswith("bitsandbytes.")]
    if own or (not is_sharded(parameter) and kinds[1] is not Tensor):
        kind = (own or kinds[1:])[0].__name__
        raise TypeError(f"parameter {name!r} is a {kind}, a tensor of its own kind; exclude it")
    if not isinstance(parameter, Parameter | torch.Tensor) or parameter.dtype not in WIDE + NARROW:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in WIDE + NARROW)
        raise TypeError(f"parameter {name!r} is {parameter.dtype}; accepted: {accepted}")
