"""The planner: from a program, as a graph of buffers, to a schedule with a lower peak. It knows no torch."""

from memwatch.errors import OptionError
from memwatch.planner.graph import Effect, Graph, GraphError, OpSpec, OrderError, cuda_block_sizes
from memwatch.planner.order.bounds import lower_bound
from memwatch.planner.order.portfolio import OrderResult, custom_order
from memwatch.planner.peak import PeakResult, Schedule, Step, StepKind, check_schedule, program_peak, simulate
from memwatch.planner.plan import BudgetError, Plan, PlanFileError, load_plan
from memwatch.planner.plan_search import best_order, plan_graph

__all__ = [
    "BudgetError",
    "Effect",
    "Graph",
    "GraphError",
    "OpSpec",
    "OptionError",
    "OrderError",
    "OrderResult",
    "PeakResult",
    "Plan",
    "PlanFileError",
    "Schedule",
    "Step",
    "StepKind",
    "best_order",
    "check_schedule",
    "cuda_block_sizes",
    "custom_order",
    "load_plan",
    "lower_bound",
    "plan_graph",
    "program_peak",
    "simulate",
]
