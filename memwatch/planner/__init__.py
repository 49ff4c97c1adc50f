"""Plan a program's memory: graph of buffers, peak simulator, bounds, orders. Knows no torch."""

from memwatch.planner.errors import BudgetError, GraphError, OrderError
from memwatch.planner.graph import Graph, cuda_block_sizes
from memwatch.planner.op import Effect, OpSpec
from memwatch.planner.peak import PeakResult, check_schedule, program_peak, simulate
from memwatch.planner.schedule import Schedule, Step, StepKind

__all__ = [
    "BudgetError",
    "Effect",
    "Graph",
    "GraphError",
    "OpSpec",
    "OrderError",
    "PeakResult",
    "Schedule",
    "Step",
    "StepKind",
    "check_schedule",
    "cuda_block_sizes",
    "program_peak",
    "simulate",
]
