"""What several commands do with their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.hardware.machine import Setup


def setup_of(
    hardware: str,
    backend: str | None,
    bandwidth: float | None,
    memory: float | None,
    *,
    parallel: int = 1,
    gpu_layers: int | None = None,
    cpu_moe: bool = False,
    n_cpu_moe: int = 0,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
) -> Setup:
    """The machine and placement that the common options describe.

    Raises:
        UnknownHardwareError: no profile has that name.
        InputError: a value that cannot be.
    """
    from advisor.hardware.machine import Placement
    from advisor.hardware.resolve import resolve

    placement = Placement(gpu_layers=gpu_layers, cpu_moe=cpu_moe, cpu_moe_layers=n_cpu_moe)
    return resolve(
        hardware,
        bandwidth=bandwidth,
        memory=memory,
        backend=backend,
        placement=placement,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        parallel=parallel,
    )
