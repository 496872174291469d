"""Acceptance, methods, round cost, speedup."""
