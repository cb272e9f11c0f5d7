"""Instruments that look at a fit without touching it."""

from scoreascent.diagnostics.gradients import GradientTrace, gradient_variance

__all__ = ["GradientTrace", "gradient_variance"]
