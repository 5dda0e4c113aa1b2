"""Time: what the rows of a schedule cost, and when they start and complete."""

from rota.simulate.cost import Costs, platform_costs, uniform_costs
from rota.simulate.engine import Timing, lower_bound_ps, predict, simulate

__all__ = ["Costs", "Timing", "lower_bound_ps", "platform_costs", "predict", "simulate", "uniform_costs"]
