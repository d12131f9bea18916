"""CUDA graphs: the kernels of a function, recorded once for every shape and launched together.

A small model leaves a GPU waiting for Python, which launches a thousand kernels for every batch.
torch.cuda.make_graphed_callables wants every shape in advance; here a graph is recorded when its
shape comes.
"""
import torch

from tools.files import UserError

MAX_TOKENS = 16_384             # a larger batch keeps a GPU busy without graphs


def check_graphs(machine, max_tokens: int, compiled: bool) -> None:
    """Raises UserError where a training step cannot be recorded, or would not gain."""
    if machine.device.type != "cuda":
        need = f"a GPU with CUDA, and --device is {machine.device}"
    elif machine.world > 1:
        need = "a run of one process"
    elif max_tokens >= MAX_TOKENS:
        need = f"--max-tokens below {MAX_TOKENS}"
    elif compiled:                                       # together they were never tried
        need = "--no-compile"
    else:
        return
    raise UserError(f"--graphs needs {need}: leave it out")


class Replay:
    """Calls a function with tensors on the GPU. The first call with their shapes runs the function,
    the second records its kernels, and from then on they are replayed. So the function must not
    read a value on the CPU, and must write to the same tensors every time. What it returns is
    overwritten by the next call. Random numbers follow the seed, as without graphs."""

    def __init__(self):
        self.graphs = {}        # shapes -> (graph, its inputs, its output), at first None
        self.pool = None        # memory of all graphs, which run one after the other

    def __call__(self, function, *inputs):
        shapes = tuple(x.shape for x in inputs)
        if shapes not in self.graphs:                    # libraries prepare themselves in a call
            self.graphs[shapes] = None
            return function(*inputs)
        if self.graphs[shapes] is None:
            self.graphs[shapes] = self.record(function, inputs)
        graph, fixed, output = self.graphs[shapes]
        for x, new in zip(fixed, inputs):
            x.copy_(new)
        graph.replay()
        return output

    def record(self, function, inputs) -> tuple:
        """The graph of a call, and the tensors that it reads and writes. Raises UserError where
        CUDA refuses."""
        graph = torch.cuda.CUDAGraph()
        try:
            # meanwhile a thread of the DataLoader may allocate pinned memory
            with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
                output = function(*inputs)
        except torch.AcceleratorError as error:
            reason, *_ = str(error).splitlines()
            raise UserError(f"--graphs: no graph could be recorded ({reason}): use --no-graphs"
                            ) from error
        self.pool = graph.pool()
        return graph, inputs, output
