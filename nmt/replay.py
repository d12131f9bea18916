"""CUDA graphs: the kernels of a function, recorded once for every shape and launched together.

A small model leaves a GPU waiting for Python, which launches a thousand kernels for every batch.
torch.cuda.make_graphed_callables wants every shape in advance; here a graph is recorded when its
shape comes.
"""
import torch

MAX_TOKENS = 16_384             # a larger batch keeps a GPU busy without graphs


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
        """The graph of a call, and the tensors that it reads and writes."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool):
            output = function(*inputs)
        self.pool = graph.pool()
        return graph, inputs, output
