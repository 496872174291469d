"""Which cost model speaks for a device: a calibration of this machine if one applies, else the fitted constants."""

from __future__ import annotations

from importlib import import_module

from advisor.hardware.machine import Backend, Device, Setup
from advisor.performance.costs import CostModel
from advisor.performance.fitted import FittedCosts
from advisor.performance.identity import IdentityCache

_FITTED: IdentityCache[FittedCosts] = IdentityCache(512)


def fitted_costs(device: Device, backend: Backend) -> FittedCosts:
    """The fitted cost model of a tier; pass this function as ``costs`` to ignore calibrations.

    Raises:
        InputError: the device has no memory bandwidth.
    """
    return _FITTED.get((device,), backend, lambda: FittedCosts(device, backend))


def cost_model(
    setup: Setup, device: Device | None = None, backend: Backend | None = None, *, calibrated: bool = True
) -> CostModel:
    """Cost model of ``device`` driven by ``backend``.

    Args:
        setup: the run; a calibration only applies to the machine it was taken on.
        device: the tier; None = the first device of the machine.
        backend: llama.cpp backend of that tier; None = that of the setup.
        calibrated: whether a stored calibration may be used.

    Raises:
        InputError: the device has no memory bandwidth.
    """
    device = device or setup.hardware.device
    backend = backend or setup.backend
    if calibrated:
        measured = _measured(setup, device, backend)
        if measured is not None:
            return measured
    return fitted_costs(device, backend)


def _measured(setup: Setup, device: Device, backend: Backend) -> CostModel | None:
    try:
        measured = import_module("advisor.performance.measured")
    except ModuleNotFoundError:
        return None
    found: CostModel | None = measured.measured_costs(setup, device, backend)
    return found
