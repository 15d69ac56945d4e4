"""A training step as one graph on a GPU: to launch its kernels takes longer than to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jmdp_lib.machine import extra

with extra("torch"):
    import torch

if TYPE_CHECKING:
    from torch import Generator

EAGER_STEPS = 3  # before a step is recorded: libraries set themselves up in these


def recorded(
    step: Callable[[], None],
    device: torch.device,
    generators: Sequence[Generator] = (),
) -> Callable[[], None]:
    """`step` itself on a processor; on a GPU it is recorded after a few calls, and replayed.

    A recorded step reads and writes always the same memory, and reads nothing back to the host. It
    sets gradients to None before it computes them. generators: those that the step draws from.
    """
    if device.type != "cuda":
        return step
    aside = torch.cuda.Stream(device)
    graph = torch.cuda.CUDAGraph()
    calls = 0

    def eager_or_replayed() -> None:
        nonlocal calls
        here = torch.cuda.current_stream(device)
        if calls < EAGER_STEPS:  # on another stream, as torch advises for what is recorded later
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                step()
            here.wait_stream(aside)
        else:
            if calls == EAGER_STEPS:
                for generator in generators:
                    graph.register_generator_state(generator)
                with torch.cuda.graph(graph):  # records, and does not run
                    step()
            graph.replay()
        calls += 1

    return eager_or_replayed
