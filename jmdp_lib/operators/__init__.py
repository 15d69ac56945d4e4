"""Joint Bellman operators: the literal T_2, the fast T_2, T_n, and the sampled backup."""

from jmdp_lib.operators.backups import sample_t2
from jmdp_lib.operators.literal import apply_t2
from jmdp_lib.operators.multisets import MultisetOperator
from jmdp_lib.operators.pairs import PairOperator, PairState

__all__ = ["MultisetOperator", "PairOperator", "PairState", "apply_t2", "sample_t2"]
