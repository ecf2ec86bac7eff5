"""Where a model computes and in which numbers: `device` and `dtype` of every verb, checked in one place.

Models compute on the processor, in float32, unless another device or type is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from longspan.errors import InputError
from longspan.settings import check_kind, show

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")

DTYPES = ("float32", "bfloat16", "float16")
"""Types of weights that can be asked for."""


def check_place(device: str | None, dtype: str | None = None) -> None:
    """Refuse a device that is not there, or a type that is none, before anything else is done."""
    torch_device(device)
    torch_dtype(dtype)


def check_named(device: str | None, dtype: str | None) -> None:
    """Refuse what is no name of a device or a type; imports nothing, and looks for no device.

    It comes before what keeps loaded models by their names, for which a list would be no key.
    """
    if device is not None:
        check_kind(device, "device", str, "a name, such as 'cuda'")
    if dtype is not None and not (isinstance(dtype, str) and dtype in DTYPES):
        raise InputError(f"dtype={show(dtype)} is not known; choose one of {', '.join(DTYPES)}")


def torch_device(name: str | None) -> torch.device:
    """The device of a name as PyTorch has them: "cpu", "cuda", "cuda:1", "mps", …; None is the processor.

    Raises:
        InputError: it is not on this machine; the sentence names those that are.
    """
    import torch

    check_named(name, None)
    try:
        device = torch.device("cpu" if name is None else name)
        if torch.empty(0, device=device).is_meta:  # which has no numbers
            raise NotImplementedError
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise InputError(f"device={show(name)} is not on this machine; give {_devices_here()}") from error
    return device


def _devices_here() -> str:
    """The devices that PyTorch finds, in words."""
    import torch

    other = torch.accelerator.current_accelerator(check_available=True)
    if other is None:
        return "'cpu', which is all that PyTorch finds here"
    count = torch.accelerator.device_count()
    return f"'cpu' or '{other.type}'" + (f", or '{other.type}:0' to '{other.type}:{count - 1}'" if count > 1 else "")


def torch_dtype(name: str | None) -> torch.dtype:
    """The type of a name; None is float32.

    Raises:
        InputError: it is none of `DTYPES`.
    """
    import torch

    check_named(None, name)
    return getattr(torch, name or "float32")


def placed(model: Model, device: str | None = None, dtype: str | None = None) -> Model:
    """A module of PyTorch on a device, with weights of a type; None leaves either as it is.

    Raises:
        InputError: as `torch_device` and `torch_dtype`.
    """
    module: Any = model
    if device is not None:
        module = module.to(torch_device(device))
    return module if dtype is None else module.to(torch_dtype(dtype))


def check_loads(name: str, value: Any, device: str | None, dtype: str | None = None) -> None:
    """Refuse a device or a type for a model that its caller has loaded already.

    Args:
        name: of the argument that holds the model.
        value: what was given: a place or name to load from, or what has been loaded.
        device, dtype: as given.

    Raises:
        InputError: naming the option that has nothing to act on, or that is no name.
    """
    check_named(device, dtype)
    for option, given in (("device", device), ("dtype", dtype)):
        if given is not None and value is not None and not (isinstance(value, str) or hasattr(value, "__fspath__")):
            raise InputError(
                f"{option}={show(given)} is for what is loaded here, and {name} is loaded already; give it to what "
                f"loads that, or leave it out"
            )


def check_numbers(dtype: str | None, *models: Any) -> None:
    """Refuse a type where no model is given: what comes with the package computes in float32.

    Raises:
        InputError: there is a type and none of the models.
    """
    if dtype is not None and all(model is None for model in models):
        raise InputError(
            f"dtype={show(dtype)} is of a model's weights, and what comes with the package computes in float32; leave "
            "it out, or give a model"
        )
