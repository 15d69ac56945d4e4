"""What solvers return, the moment collection, and what moments say about the law of a gap."""

from jmdp_lib.moments.bounds import MomentBounds as MomentBounds
from jmdp_lib.moments.bounds import cantelli as cantelli
from jmdp_lib.moments.bounds import cvar_bounds as cvar_bounds
from jmdp_lib.moments.bounds import normal_quantile as normal_quantile
from jmdp_lib.moments.bounds import one_sided_bound as one_sided_bound
from jmdp_lib.moments.bounds import quantile_bounds as quantile_bounds
from jmdp_lib.moments.bounds import tail_bounds as tail_bounds
from jmdp_lib.moments.collection import Moments as Moments
from jmdp_lib.moments.collection import MomentSource as MomentSource
from jmdp_lib.moments.collection import StateAction as StateAction
from jmdp_lib.moments.collection import StoredMoments as StoredMoments
from jmdp_lib.moments.collection import contraction_modulus as contraction_modulus
from jmdp_lib.moments.collection import gap_table as gap_table
from jmdp_lib.moments.collection import moments_of_parts as moments_of_parts
from jmdp_lib.moments.collection import norm_weight as norm_weight
from jmdp_lib.moments.collection import same_state_moments as same_state_moments
from jmdp_lib.moments.collection import second_moments as second_moments
