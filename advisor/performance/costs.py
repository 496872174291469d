"""What a machine charges for each kind of work: the one interface between physics and machines.

A pass is a sum of such charges. Two cost models exist: :class:`advisor.performance.fitted.FittedCosts`, from
constants fitted to published tables, and :class:`advisor.performance.measured.MeasuredCosts`, from a calibration
of this machine. Everything above (pass times, rounds, recommendations) is the same code for both.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from advisor.base import Figure, Provenance


class Matrices(NamedTuple):
    """Dense weights of one type: ggml type, bytes, weights, rows (outputs; 0 = unknown, taken for long rows)."""

    quant: str
    nbytes: float
    parameters: float
    rows: float = 0.0

    def scaled(self, share: float) -> Matrices:
        """An even part of them."""
        return Matrices(self.quant, self.nbytes * share, self.parameters * share, self.rows * share)

    def routed(self, total: int, used: float) -> Experts:
        """The same as routed experts."""
        return Experts(self.quant, self.nbytes, self.parameters, total, used, self.rows)


class Experts(NamedTuple):
    """Routed experts of one type: sizes of all of them together, how many there are and how many a token uses."""

    quant: str
    nbytes: float
    parameters: float
    total: int
    used: float
    rows: float = 0.0


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

    def matrix(self, weights: Matrices, n: int, architecture: str) -> float:
        """Streaming dense matrices once and multiplying them by ``n`` columns [s]."""

    def experts(self, weights: Experts, n: int, architecture: str) -> float:
        """Routed experts of the pass [s]."""

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
