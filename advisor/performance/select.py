"""Which cost model speaks for a device: a calibration of this machine if one applies, else the fitted constants."""

from __future__ import annotations

from importlib import import_module

from advisor.hardware.machine import Backend, Device, Setup
from advisor.performance.constants import Constants
from advisor.performance.costs import CostModel
from advisor.performance.fitted import OLD_EXPERT_BUILDS, FittedCosts, Kernel
from advisor.performance.identity import IdentityCache

_FITTED: IdentityCache[FittedCosts] = IdentityCache(512)


def fitted_costs(device: Device, backend: Backend) -> FittedCosts:
    """The fitted cost model of a tier; pass this function as ``costs`` to ignore calibrations.

    Raises:
        InputError: the device has no memory bandwidth.
    """
    return _FITTED.get((device,), backend, lambda: FittedCosts(device, backend))


class FittedSource:
    """Fitted cost models for a certain build, kernel family or set of constants; pass it as ``costs``.

    Keep the object: models are laid out once per source.
    """

    def __init__(self, constants: Constants | None = None, build: int | None = None, kernel: Kernel = "auto") -> None:
        self._constants = constants
        self._build = build
        self._kernel: Kernel = kernel
        self._made: IdentityCache[FittedCosts] = IdentityCache(512)

    def __call__(self, device: Device, backend: Backend) -> FittedCosts:
        """Cost model of a tier.

        Raises:
            InputError: the device has no memory bandwidth.
        """
        return self._made.get(
            (device,),
            backend,
            lambda: FittedCosts(device, backend, self._constants, build=self._build, kernel=self._kernel),
        )


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
    if setup.build is not None and setup.build < OLD_EXPERT_BUILDS:
        return _OLD(device, backend)
    return fitted_costs(device, backend)


_OLD = FittedSource(build=OLD_EXPERT_BUILDS - 1)


def _measured(setup: Setup, device: Device, backend: Backend) -> CostModel | None:
    try:
        measured = import_module("advisor.performance.measured")
    except ModuleNotFoundError:
        return None
    found: CostModel | None = measured.measured_costs(setup, device, backend)
    return found
