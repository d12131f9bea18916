"""A function of tasks/probe_toy.py."""
from toy import Tree


def depth(tree: Tree) -> int:
    """The number of labels from the root down to the deepest word."""
    # Conneau 2018 §3, TrDep: probing label, 1 point
    raise NotImplementedError("Conneau 2018 §3, TrDep: probing label")
