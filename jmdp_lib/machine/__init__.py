"""What concerns the computer and not the mathematics: this process, files, compiled code."""

from jmdp_lib.machine.compiled import add_scaled as add_scaled
from jmdp_lib.machine.compiled import cached as cached
from jmdp_lib.machine.compiled import hot as hot
from jmdp_lib.machine.compiled import inline as inline
from jmdp_lib.machine.compiled import inner_product as inner_product
from jmdp_lib.machine.compiled import largest_of as largest_of
from jmdp_lib.machine.compiled import rounding_of as rounding_of
from jmdp_lib.machine.compiled import rounding_of_returns as rounding_of_returns
from jmdp_lib.machine.compiled import threaded as threaded
from jmdp_lib.machine.files import ReadOnly as ReadOnly
from jmdp_lib.machine.files import content_of as content_of
from jmdp_lib.machine.files import load_parts as load_parts
from jmdp_lib.machine.files import printed_names as printed_names
from jmdp_lib.machine.files import replacing as replacing
from jmdp_lib.machine.files import save_parts as save_parts
from jmdp_lib.machine.files import table as table
from jmdp_lib.machine.process import available_bytes as available_bytes
from jmdp_lib.machine.process import cores as cores
from jmdp_lib.machine.process import extra as extra
from jmdp_lib.machine.process import fits as fits
from jmdp_lib.machine.process import gibibytes as gibibytes
from jmdp_lib.machine.process import in_executor as in_executor
from jmdp_lib.machine.process import progress as progress
from jmdp_lib.machine.process import require as require
