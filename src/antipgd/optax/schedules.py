"""Our schedules as functions that JAX can trace: the step is an array there.

Any function of the step (1, 2, …) in jnp works as it is, Optax's schedules among them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from antipgd.noise.schedules import Cosine, Linear, Plateau, Steps, Window

Traceable = Callable[[Any], Any]


def _linear(schedule: Linear, step: Any) -> Any:
    done = jnp.clip((step - schedule.begin) / (schedule.end - schedule.begin), 0, 1)
    return (1 - done) * schedule.initial + done * schedule.final


def _cosine(schedule: Cosine, step: Any) -> Any:
    done = jnp.clip((step - schedule.begin) / (schedule.end - schedule.begin), 0, 1)
    return schedule.final + (schedule.initial - schedule.final) * (1 + jnp.cos(jnp.pi * done)) / 2


def _steps(schedule: Steps, step: Any) -> Any:
    passed = sum(jnp.asarray(step > milestone, float) for milestone in schedule.milestones)
    return jnp.power(schedule.gamma, passed)


def _window(schedule: Window, step: Any) -> Any:
    inside = step > schedule.start
    if schedule.stop is not None:
        inside = inside & (step <= schedule.stop)
    return jnp.asarray(inside, float)


_OURS: dict[type, Callable[[Any, Any], Any]] = {
    Linear: _linear, Cosine: _cosine, Steps: _steps, Window: _window,
}  # fmt: skip


def as_traceable(schedule: Any) -> Traceable:
    """The schedule as a function of a traced step, refused unless it is one."""
    if schedule is None:
        return lambda step: 1.0
    if type(schedule) in _OURS:
        return lambda step: _OURS[type(schedule)](schedule, step)
    if isinstance(schedule, Plateau):
        raise ValueError(
            f"schedule={schedule!r} is told of losses, which a traced update cannot be: wrap the "
            f"transformation in optax.inject_hyperparams and set sigma yourself"
        )
    if not callable(schedule):
        raise ValueError(f"schedule must be a function of the step; got {schedule!r}")
    try:
        made = jax.eval_shape(lambda step: jnp.asarray(schedule(step), float), jnp.int32(1))
    except (jax.errors.JAXTypeError, TypeError, ValueError) as error:
        raise TypeError(
            f"schedule must be a function of the step that JAX can trace (jnp.where and "
            f"jnp.minimum in place of if and min) and return a number; {schedule!r} failed: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if made.shape != ():
        raise ValueError(f"schedule must return one number; got an array of shape {made.shape}")
    return schedule
