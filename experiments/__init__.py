"""The paper's own experiments, beside the library: no part of what `pip install jmdp_lib` brings.

They are importable wherever the project is installed in place (`pip install -e .`), as `make
figures` and `make test` install it.
"""
