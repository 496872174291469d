"""What a machine charges for each kind of work: the one interface between physics and machines.

A pass is a sum of such charges. Two cost models exist: :class:`advisor.performance.fitted.FittedCosts`, from
constants fitted to published tables, and :class:`advisor.performance.measured.MeasuredCosts`, from a calibration
of this machine. Everything above (pass times, rounds, recommendations) is the same code for both.
"""

from __future__ import annotations

from typing import Protocol

from advisor.base import Figure, Provenance


class CostModel(Protocol):
    """Seconds for each kind of work on one device with one backend.

    All methods are pure. ``n`` is the number of tokens (columns) in the pass, at least 1.
    """

    @property
    def kind(self) -> Provenance:
        """Where the numbers come from: ``measured`` here, ``fitted``, or ``assumed`` for a device without data."""

    def log_sd(self, architecture: str, method: str) -> float:
        """Standard deviation of ln(true / predicted) of a round cost R(k) for such a target and method."""

    def step_log_sd(self, architecture: str) -> float:
        """Standard deviation of ln(true / predicted) of the decode time T(1)."""

    def fixed(self, architecture: str, layers: float, n: int) -> float:
        """Launches, synchronisation, norms and activations of ``layers`` blocks [s]."""

    def matrix(
        self, quant: str, nbytes: float, parameters: float, n: int, architecture: str, rows: float = 0.0
    ) -> float:
        """Streaming dense matrices once and multiplying them by ``n`` columns [s].

        ``rows`` are their outputs together; 0 = unknown, taken for long rows.
        """

    def experts(
        self,
        quant: str,
        nbytes: float,
        parameters: float,
        count: int,
        used: float,
        n: int,
        architecture: str,
        rows: float = 0.0,
    ) -> float:
        """Routed experts of the pass [s]: bytes, weights and rows are those of *all* ``count`` experts together."""

    def cache(self, nbytes: float, n: int) -> float:
        """Reading ``nbytes`` of KV cache for ``n`` query tokens [s]."""

    def state(self, nbytes: float, n: int, snapshots: int) -> float:
        """Updating ``nbytes`` of recurrent state over ``n`` tokens, keeping ``snapshots`` extra copies [s]."""

    def checkpoint(self, nbytes: float) -> float:
        """Saving (or restoring) ``nbytes`` of recurrent state through the host [s]."""

    def drafted_token(self, method: str, vocabulary: int, layers: float = 1.0) -> float:
        """Overhead of one draft pass beyond its weights and ``fixed`` part [s].

        Graph rebuild and launches of ``layers`` draft blocks outside the replayed graph, sampling over ``vocabulary``
        logits, synchronisation.
        """

    def verified_token(self, vocabulary: int) -> float:
        """Overhead of one verified row beyond the pass: copying and sampling its logits [s]."""

    def round_overhead(self, method: str) -> float:
        """Overhead of one round that depends on nothing else [s]."""

    def figures(self, architecture: str, quant: str) -> dict[str, Figure]:
        """The constants behind a prediction for such a model, with units and sources, for display."""
