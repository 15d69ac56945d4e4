"""The paper's experiments, beside the library: `pip install jmdp_lib` does not install them.

They are importable wherever the project is installed in place (`pip install -e .`), as `make
figures` and `make test` install it.
"""
