"""Choice of the points that a client sends to a neighbour: clusters first, then points inside a cluster.

Wagle et al., "Embedding Alignment for Unsupervised Federated Learning via Smart Data Exchange" (CF-CL), (8) to (12). The
transmitter j holds *candidates* (a sample of its own points) and the *reserve* of the receiver i (points that i once pushed to
j), and looks at both through one embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.clustering.kmeans import kmeans


def compare(
    candidates: Tensor, anchors: Tensor, positives: Tensor, num_clusters: int, margin: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return what a draw of candidates needs: their ``clusters``, the chances ``macro`` (8) of these, and ``losses`` (10).

    Args:
        candidates: embedded candidates, shape (num_candidates, dim).
        anchors: embedded reserve points, shape (num_reserve, dim).
        positives: embedded augmentations of them, same shape.
        num_clusters: of candidates and reserve points together; fewer where there are fewer points.
        margin: m of the triplet loss.
        generator: seeds k-means++.
    """
    num_clusters = min(num_clusters, len(candidates) + len(anchors))
    assignment = kmeans(torch.cat([candidates, anchors]), num_clusters, generator).assignment
    own, others = assignment.tensor_split([len(candidates)])
    macro = macro_probabilities(own, others, num_clusters)
    return {"clusters": own, "macro": macro, "losses": mean_losses(anchors, positives, candidates, margin)}


def macro_probabilities(candidate_clusters: Tensor, reserve_clusters: Tensor, num_clusters: int) -> Tensor:
    """Return the chance of each cluster, float64 of shape (num_clusters,): high where the sender has more than the receiver.

    (9): "X(l) = K_approx(l) / (K_approx(l) + K_push(l))", counts of candidates and reserve points in cluster l; (8) divides by
    the sum over clusters. An empty cluster has chance 0.

    Args:
        candidate_clusters: cluster of each candidate, shape (num_candidates,).
        reserve_clusters: cluster of each reserve point, shape (num_reserve,).
        num_clusters: how many clusters there are.
    """
    candidates = torch.bincount(candidate_clusters, minlength=num_clusters).double()
    reserve = torch.bincount(reserve_clusters, minlength=num_clusters).double()
    ratio = candidates / (candidates + reserve).clamp(min=1)
    return ratio / ratio.sum()


def mean_losses(anchors: Tensor, positives: Tensor, candidates: Tensor, margin: float) -> Tensor:
    """Return the mean triplet loss of each candidate as a negative of the reserve points, shape (num_candidates,).

    (10): "the average/expected loss when it is used as a negative with datapoints in D_reserve used as anchors".

    Args:
        anchors: embedded reserve points, shape (num_reserve, dim).
        positives: embedded augmentations of them, same shape.
        candidates: embedded candidates, shape (num_candidates, dim).
        margin: m of the triplet loss.
    """
    near = (anchors - positives).square().sum(dim=1, keepdim=True)
    lengths = anchors.square().sum(dim=1, keepdim=True)
    far = torch.addmm(candidates.square().sum(dim=1)[None], anchors, candidates.T, alpha=-2).add_(lengths).clamp_(min=0)
    return far.neg_().add_(near + margin).relu_().mean(dim=0)


def log_importance(losses: Tensor, clusters: Tensor, macro: Tensor, temperature: float) -> Tensor:
    """Return the logarithm of each candidate's chance to be drawn first, float64 of shape (num_candidates,).

    (11): the softmax of "lambda x loss" over the candidates of a cluster; (12): "P(d) = P_micro(d) x P_macro(l), d in l".

    Args:
        losses: of each candidate, (10), shape (num_candidates,).
        clusters: of each candidate, shape (num_candidates,).
        macro: chance of each cluster, (8), shape (num_clusters,).
        temperature: lambda >= 0, which multiplies the losses.
    """
    scores = temperature * losses.double()
    highest = torch.full_like(macro, -torch.inf).scatter_reduce_(0, clusters, scores, "amax")
    shifted = scores - highest[clusters]
    normalizer = torch.zeros_like(macro).index_add_(0, clusters, shifted.exp())
    return shifted - normalizer.log()[clusters] + macro.log()[clusters]


def draw_without_replacement(log_chances: Tensor, num_points: int, generator: torch.Generator) -> Tensor:
    """Return positions of points drawn one by one, each with its chance among those left; ascending, shape (num_points,).

    The largest of ``log p + Gumbel noise`` are such a draw (Efraimidis & Spirakis 2006), and no chance is too small for it.

    Args:
        log_chances: shape (num_candidates,).
        num_points: how many; all of them where there are fewer.
        generator: draws them.
    """
    waiting = torch.empty_like(log_chances).exponential_(generator=generator)
    return (log_chances - waiting.log()).topk(min(num_points, len(log_chances))).indices.sort().values
