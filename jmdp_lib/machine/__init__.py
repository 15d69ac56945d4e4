"""What concerns the computer and not the mathematics: this process, compiled code, results."""

from jmdp_lib.machine.compiled import add_scaled as add_scaled
from jmdp_lib.machine.compiled import cached as cached
from jmdp_lib.machine.compiled import hot as hot
from jmdp_lib.machine.compiled import inline as inline
from jmdp_lib.machine.compiled import inner_product as inner_product
from jmdp_lib.machine.compiled import largest_of as largest_of
from jmdp_lib.machine.compiled import rounding_of as rounding_of
from jmdp_lib.machine.compiled import rounding_of_returns as rounding_of_returns
from jmdp_lib.machine.compiled import threaded as threaded
from jmdp_lib.machine.process import available_bytes as available_bytes
from jmdp_lib.machine.process import extra as extra
from jmdp_lib.machine.process import fits as fits
from jmdp_lib.machine.process import gibibytes as gibibytes
from jmdp_lib.machine.process import progress as progress
from jmdp_lib.machine.process import require as require
from jmdp_lib.machine.results import ReadOnly as ReadOnly
from jmdp_lib.machine.results import table as table
