"""Ways to judge a policy: episodes in its environment, or estimates from a dataset alone."""

from rlexp.evaluators.base import Estimate, EvaluationMethod
from rlexp.evaluators.environment import InEnvironment
from rlexp.evaluators.fqe import FQE
from rlexp.evaluators.initial_value import InitialValue

__all__ = ["FQE", "Estimate", "EvaluationMethod", "InEnvironment", "InitialValue"]
