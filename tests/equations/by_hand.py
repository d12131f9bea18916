"""Every printed loop once, the oracles of the tests: lists of numbers, a sum for a Σ.

Vectors are lists, tensors come in and go out only where a function says so.
"""
import math

import torch
from torch import Tensor


def dot(a: list, b: list) -> float:
    """Σ_i a_i b_i."""
    return sum(x * y for x, y in zip(a, b))


def softmax(x: list) -> list:
    """exp(x_n) / Σ_n' exp(x_n')."""
    largest = max(x)
    powers = [math.exp(v - largest) for v in x]
    return [power / sum(powers) for power in powers]


def joined(capsules: list) -> list:
    """[Ω_1, ..., Ω_N], one after the other."""
    return [v for capsule in capsules for v in capsule]


# Dynamic routing: Li 2019 Algorithm 1, Eq. 7-8; Gu 2019 Eq. 8-11; Duan 2020 Algorithm 1, Eq. 6-7

def squash(s: list) -> list:
    """‖s‖² / (1 + ‖s‖²) · s / ‖s‖, 0 at s = 0."""
    size = math.sqrt(dot(s, s))
    return [size ** 2 / (1 + size ** 2) * v / size if size else 0.0 for v in s]


def weighted_votes(votes: list, C: list, n: int, normalize: bool) -> list:
    """s_n: Σ_m C_mn V_mn, over Σ_m C_mn when normalize."""
    M = len(votes)
    D = len(votes[0][n])
    total = [0.0] * D
    for m in range(M):
        for i in range(D):
            total[i] += C[m][n] * votes[m][n][i]
    divisor = sum(C[m][n] for m in range(M)) if normalize else 1.0
    return [x / divisor for x in total]


def dynamic_routing(votes: list, T: int, normalize: bool = True) -> tuple[list, list, list]:
    """(Ω [N][D], C [M][N], B [M][N]) of votes[m][n], lists of D numbers."""
    M = len(votes)
    N = len(votes[0])
    B = [[0.0] * N for _ in range(M)]
    for _ in range(T):
        C = [softmax(row) for row in B]
        omega = [squash(weighted_votes(votes, C, n, normalize)) for n in range(N)]
        for m in range(M):
            for n in range(N):
                B[m][n] += dot(omega[n], votes[m][n])
    return omega, C, B


# Disagreement: Li 2018 Eq. 1-3 and footnote 2

def cosine(x: list, y: list) -> float:
    """cos(x, y), 0 if one of them is all zero."""
    size = math.sqrt(dot(x, x)) * math.sqrt(dot(y, y))
    return dot(x, y) / size if size else 0.0


def sentences_of(x: Tensor, mask: Tensor | None) -> list:
    """(x [H][L][...], valid [L]) of every sentence of x [..., H, L, width], mask [..., L]."""
    H, L, width = x.shape[-3:]
    heads = x.reshape(-1, H, L, width).tolist()
    mask = torch.tensor(True) if mask is None else mask
    valid = mask.expand(*x.shape[:-3], L).reshape(-1, L).tolist()
    return list(zip(heads, valid))


def cosine_double_sum(vectors: Tensor, mask: Tensor | None = None) -> float:
    """-1/H² Σ_i Σ_j cos(x_i, x_j) at every valid position of the batch, then their mean."""
    scores = []
    for heads, valid in sentences_of(vectors, mask):
        for l in range(len(valid)):
            if valid[l]:
                pairs = [cosine(x[l], y[l]) for x in heads for y in heads]
                scores.append(-sum(pairs) / len(heads) ** 2)
    return sum(scores) / len(scores)


def position_double_sum(weights: Tensor, mask: Tensor | None = None, reduce: str = "mean",
                        cell=None) -> float:
    """-1/H² Σ_i Σ_j |A^i ⊙ A^j| over the cells of valid queries.

    reduce: "mean" per valid query, "sum" per sentence. cell(a, b): what a cell of two heads adds,
    in place of -|a b|.
    """
    total = 0.0
    queries = 0
    sentences = sentences_of(weights, mask)
    for heads, valid in sentences:
        for q in range(len(valid)):
            if valid[q]:
                queries += 1
                for x in heads:
                    for y in heads:
                        for a, b in zip(x[q], y[q]):
                            total += (cell(a, b) if cell else -abs(a * b)) / len(heads) ** 2
    return total / (queries if reduce == "mean" else len(sentences))


def squared_difference(a: float, b: float) -> float:
    """A cell of footnote 2: +|a - b|²."""
    return (a - b) ** 2


# Capsule attention: Duan 2020 Algorithms 2-3, Eq. 8-14

def vertical_routing(E: Tensor, weight: Tensor, bias: Tensor, T: int) -> Tensor:
    """Algorithm 2 for the logits E [H, L, K] of one sentence; every query takes part."""
    H, L, _ = E.shape
    votes = E.tolist()                                           # V_{h→l} = e_{l,h}, Eq. 8
    omega, _, B = dynamic_routing(votes, T, normalize=False)     # Eq. 9
    total = [sum(B[h]) for h in range(H)]
    Lambda = [dot(weight[h].tolist(), total) + float(bias[h]) for h in range(H)]            # Eq. 11
    share = softmax(Lambda)
    out = torch.zeros_like(E)
    for h in range(H):
        for l in range(L):
            scaled = [share[h] * v for v in omega[l]]            # Eq. 10
            out[h, l] = torch.tensor(scaled, dtype=torch.float64)
    return out


def horizontal_routing(E: Tensor, T: int) -> Tensor:
    """Algorithm 3 for the logits E [H, L, K] of one sentence: a routing of its own for every l."""
    H, L, _ = E.shape
    out = torch.zeros_like(E)
    for l in range(L):
        votes = E[:, :l + 1].transpose(0, 1).tolist()            # Eq. 12, t <= l
        omega, _, _ = dynamic_routing(votes, T, normalize=False)                 # Eq. 14
        out[:, l] = torch.tensor(omega, dtype=torch.float64)
    return out


# Attention: Li 2019 Eq. 1-2, Duan 2020 Eq. 4-5

def projections(weight: Tensor, bias: Tensor, query: Tensor, memory: Tensor,
                heads: int) -> tuple[list, list, list]:
    """Q, K, V of one sentence, [h][l] lists of d_k numbers each.

    weight [3d, d] holds W^Q, W^K, W^V in this order.
    """
    d = query.shape[-1]
    d_k = d // heads
    rows = weight.tolist()
    biases = bias.tolist()

    def projected(side, which, h):
        first = which * d + h * d_k
        vectors = []
        for x in side.tolist():
            vectors.append([dot(x, rows[row]) + biases[row] for row in range(first, first + d_k)])
        return vectors
    Q = [projected(query, 0, h) for h in range(heads)]
    K = [projected(memory, 1, h) for h in range(heads)]
    V = [projected(memory, 2, h) for h in range(heads)]
    return Q, K, V


def logits(Q: list, K: list) -> Tensor:
    """E_h = Q_h K_h^T / sqrt(d_k), [H, L_q, L_k]."""
    E = torch.zeros(len(Q), len(Q[0]), len(K[0]), dtype=torch.float64)
    for h, (queries, keys) in enumerate(zip(Q, K)):
        for l, q in enumerate(queries):
            for j, k in enumerate(keys):
                E[h, l, j] = dot(q, k) / math.sqrt(len(q))
    return E


def attention(weight: Tensor, bias: Tensor, query: Tensor, memory: Tensor, heads: int,
              mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """V [B, H, L_k, d_k], A [B, H, L_q, L_k] and O [B, H, L_q, d_k].

    query [B, L_q, d], memory [B, L_k, d], mask [B, L_q, L_k]: where a query may look.
    """
    by_sentence = []
    for b in range(len(query)):
        Q, K, V = projections(weight, bias, query[b], memory[b], heads)
        E = logits(Q, K)
        A = torch.zeros_like(E)
        O = torch.zeros(heads, len(query[b]), len(V[0][0]), dtype=torch.float64)
        for h in range(heads):
            for l in range(len(query[b])):
                seen = [j for j in range(len(memory[b])) if mask is None or mask[b, l, j]]
                for j, share in zip(seen, softmax([float(E[h, l, j]) for j in seen])):
                    A[h, l, j] = share
                for i in range(O.shape[-1]):
                    O[h, l, i] = sum(float(A[h, l, j]) * V[h][j][i] for j in seen)
        by_sentence.append((torch.tensor(V, dtype=torch.float64), A, O))
    return tuple(map(torch.stack, zip(*by_sentence)))
