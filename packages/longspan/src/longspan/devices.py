"""Devices and dtypes of models: the options `device` and `dtype` of every verb, checked in one place.

Models run on the CPU, in float32, unless another device or dtype is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from longspan.errors import InputError
from longspan.settings import check_kind, show

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")

DTYPES = ("float32", "bfloat16", "float16")
"""Supported dtypes of weights."""


def check_place(device: str | None, dtype: str | None = None) -> None:
    """Raises `InputError` for an unavailable device or an unknown dtype."""
    torch_device(device)
    torch_dtype(dtype)


def check_named(device: str | None, dtype: str | None) -> None:
    """Raises `InputError` for invalid names of a device or dtype, without imports and without looking for devices.

    It is called before caches with these names as keys, for which a list is not hashable.
    """
    if device is not None:
        check_kind(device, "device", str, "a name, such as 'cuda'")
    if dtype is not None and not (isinstance(dtype, str) and dtype in DTYPES):
        raise InputError(f"dtype={show(dtype)} is not known; choose one of {', '.join(DTYPES)}")


def torch_device(name: str | None) -> torch.device:
    """Returns the device of a PyTorch device name: "cpu", "cuda", "cuda:1", "mps", …; None is the CPU.

    Raises:
        InputError: it is not available; the message lists those that are.
    """
    import torch

    check_named(name, None)
    try:
        device = torch.device("cpu" if name is None else name)
        if torch.empty(0, device=device).is_meta:  # tensors on it have no values
            raise NotImplementedError
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise InputError(f"device={show(name)} is not on this machine; give {_devices_here()}") from error
    return device


def _devices_here() -> str:
    """Returns the devices that PyTorch finds, in words."""
    import torch

    other = torch.accelerator.current_accelerator(check_available=True)
    if other is None:
        return "'cpu', which is all that PyTorch finds here"
    count = torch.accelerator.device_count()
    return f"'cpu' or '{other.type}'" + (f", or '{other.type}:0' to '{other.type}:{count - 1}'" if count > 1 else "")


def torch_dtype(name: str | None) -> torch.dtype:
    """Returns the dtype of a name; None is float32.

    Raises:
        InputError: it is not in `DTYPES`.
    """
    import torch

    check_named(None, name)
    return getattr(torch, name or "float32")


def placed(model: Model, device: str | None = None, dtype: str | None = None) -> Model:
    """Moves a module to a device and converts its weights to a dtype; None leaves either unchanged.

    Raises:
        InputError: as `torch_device` and `torch_dtype`.
    """
    module: Any = model
    if device is not None:
        module = module.to(torch_device(device))
    return module if dtype is None else module.to(torch_dtype(dtype))


def check_loads(name: str, value: Any, device: str | None, dtype: str | None = None) -> None:
    """Raises `InputError` for a device or a dtype in combination with a loaded model.

    Args:
        name: name of the argument with the model.
        value: its value: a path or name to load from, or a loaded model.
        device, dtype: the values passed by the caller.

    Raises:
        InputError: naming the option that has no effect, or that is invalid.
    """
    check_named(device, dtype)
    for option, choice in (("device", device), ("dtype", dtype)):
        if choice is not None and value is not None and not (isinstance(value, str) or hasattr(value, "__fspath__")):
            raise InputError(
                f"{option}={show(choice)} is for what is loaded here, and {name} is loaded already; give it to what "
                f"loads that, or leave it out"
            )


def check_numbers(dtype: str | None, *models: Any) -> None:
    """Raises `InputError` for a dtype without a model: bundled models compute in float32.

    Raises:
        InputError: there is a dtype and none of the models.
    """
    if dtype is not None and all(model is None for model in models):
        raise InputError(
            f"dtype={show(dtype)} is of a model's weights, and what comes with the package computes in float32; leave "
            "it out, or give a model"
        )
