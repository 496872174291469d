"""Will a draft make this model faster on this machine? The public API, imported on first use.

``import advisor`` does nothing but define names: no file is read, no process or network touched, nothing printed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.advice.builds import flags_of as flags_of
    from advisor.advice.builds import methods_of as methods_of
    from advisor.advice.launch import BuildFlags as BuildFlags
    from advisor.advice.launch import Command as Command
    from advisor.advice.launchers import Entry as Entry
    from advisor.advice.recommend import recommend as recommend
    from advisor.advice.recommendation import Exclusion as Exclusion
    from advisor.advice.recommendation import Expectation as Expectation
    from advisor.advice.recommendation import Option as Option
    from advisor.advice.recommendation import Recommendation as Recommendation
    from advisor.advice.recommendation import Scan as Scan
    from advisor.advice.scan import scan as scan
    from advisor.advice.watch import watch as watch
    from advisor.base import Figure as Figure
    from advisor.base import Range as Range
    from advisor.errors import AdvisorError as AdvisorError
    from advisor.errors import CancelledError as CancelledError
    from advisor.errors import EngineError as EngineError
    from advisor.errors import HubError as HubError
    from advisor.errors import InputError as InputError
    from advisor.errors import ModelFileError as ModelFileError
    from advisor.errors import NotDraftedError as NotDraftedError
    from advisor.errors import UnknownHardwareError as UnknownHardwareError
    from advisor.errors import UnknownModelError as UnknownModelError
    from advisor.hardware.detect import detect as detect_hardware
    from advisor.hardware.machine import Backend as Backend
    from advisor.hardware.machine import Device as Device
    from advisor.hardware.machine import Hardware as Hardware
    from advisor.hardware.machine import Placement as Placement
    from advisor.hardware.machine import RpcHost as RpcHost
    from advisor.hardware.machine import Setup as Setup
    from advisor.hardware.profiles import find as find_hardware
    from advisor.hardware.resolve import resolve as resolve
    from advisor.llamacpp.calibrate import calibrate as calibrate
    from advisor.llamacpp.confirm import Confirmation as Confirmation
    from advisor.llamacpp.confirm import confirm as confirm
    from advisor.llamacpp.find import Engine as Engine
    from advisor.llamacpp.find import find_engine as find_engine
    from advisor.models.description import ModelDescription as ModelDescription
    from advisor.models.pairs import PairReport as PairReport
    from advisor.models.pairs import check_pair as check_pair
    from advisor.models.reference import describe as describe
    from advisor.performance.measured import Calibration as Calibration
    from advisor.performance.memory import memory_plan as memory_plan
    from advisor.speculation.predict import predict as predict
    from advisor.speculation.prediction import MemoryPlan as MemoryPlan
    from advisor.speculation.prediction import Method as Method
    from advisor.speculation.prediction import Prediction as Prediction
    from advisor.speculation.prediction import Task as Task

__version__ = "0.1.0"

# public name -> (module, name there); lazy, so that a launcher pays only for what it uses.
_EXPORTS: dict[str, tuple[str, str]] = {
    "AdvisorError": ("advisor.errors", "AdvisorError"),
    "Backend": ("advisor.hardware.machine", "Backend"),
    "BuildFlags": ("advisor.advice.launch", "BuildFlags"),
    "Calibration": ("advisor.performance.measured", "Calibration"),
    "CancelledError": ("advisor.errors", "CancelledError"),
    "Command": ("advisor.advice.launch", "Command"),
    "Confirmation": ("advisor.llamacpp.confirm", "Confirmation"),
    "Device": ("advisor.hardware.machine", "Device"),
    "Engine": ("advisor.llamacpp.find", "Engine"),
    "EngineError": ("advisor.errors", "EngineError"),
    "Entry": ("advisor.advice.launchers", "Entry"),
    "Exclusion": ("advisor.advice.recommendation", "Exclusion"),
    "Expectation": ("advisor.advice.recommendation", "Expectation"),
    "Figure": ("advisor.base", "Figure"),
    "Hardware": ("advisor.hardware.machine", "Hardware"),
    "HubError": ("advisor.errors", "HubError"),
    "InputError": ("advisor.errors", "InputError"),
    "MemoryPlan": ("advisor.speculation.prediction", "MemoryPlan"),
    "Method": ("advisor.speculation.prediction", "Method"),
    "ModelDescription": ("advisor.models.description", "ModelDescription"),
    "ModelFileError": ("advisor.errors", "ModelFileError"),
    "NotDraftedError": ("advisor.errors", "NotDraftedError"),
    "Option": ("advisor.advice.recommendation", "Option"),
    "PairReport": ("advisor.models.pairs", "PairReport"),
    "Placement": ("advisor.hardware.machine", "Placement"),
    "Prediction": ("advisor.speculation.prediction", "Prediction"),
    "Range": ("advisor.base", "Range"),
    "Recommendation": ("advisor.advice.recommendation", "Recommendation"),
    "RpcHost": ("advisor.hardware.machine", "RpcHost"),
    "Scan": ("advisor.advice.recommendation", "Scan"),
    "Setup": ("advisor.hardware.machine", "Setup"),
    "Task": ("advisor.speculation.prediction", "Task"),
    "UnknownHardwareError": ("advisor.errors", "UnknownHardwareError"),
    "UnknownModelError": ("advisor.errors", "UnknownModelError"),
    "calibrate": ("advisor.llamacpp.calibrate", "calibrate"),
    "check_pair": ("advisor.models.pairs", "check_pair"),
    "confirm": ("advisor.llamacpp.confirm", "confirm"),
    "describe": ("advisor.models.reference", "describe"),
    "detect_hardware": ("advisor.hardware.detect", "detect"),
    "find_engine": ("advisor.llamacpp.find", "find_engine"),
    "find_hardware": ("advisor.hardware.profiles", "find"),
    "flags_of": ("advisor.advice.builds", "flags_of"),
    "memory_plan": ("advisor.performance.memory", "memory_plan"),
    "methods_of": ("advisor.advice.builds", "methods_of"),
    "predict": ("advisor.speculation.predict", "predict"),
    "recommend": ("advisor.advice.recommend", "recommend"),
    "resolve": ("advisor.hardware.resolve", "resolve"),
    "scan": ("advisor.advice.scan", "scan"),
    "watch": ("advisor.advice.watch", "watch"),
}

__all__ = [
    "AdvisorError",
    "Backend",
    "BuildFlags",
    "Calibration",
    "CancelledError",
    "Command",
    "Confirmation",
    "Device",
    "Engine",
    "EngineError",
    "Entry",
    "Exclusion",
    "Expectation",
    "Figure",
    "Hardware",
    "HubError",
    "InputError",
    "MemoryPlan",
    "Method",
    "ModelDescription",
    "ModelFileError",
    "NotDraftedError",
    "Option",
    "PairReport",
    "Placement",
    "Prediction",
    "Range",
    "Recommendation",
    "RpcHost",
    "Scan",
    "Setup",
    "Task",
    "UnknownHardwareError",
    "UnknownModelError",
    "__version__",
    "calibrate",
    "check_pair",
    "confirm",
    "describe",
    "detect_hardware",
    "find_engine",
    "find_hardware",
    "flags_of",
    "memory_plan",
    "methods_of",
    "predict",
    "recommend",
    "resolve",
    "scan",
    "watch",
]


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value  # found once, the next look-up costs nothing
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
