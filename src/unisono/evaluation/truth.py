"""Sentences about a run, from the numbers of the probe ``unlabelled``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unisono.evaluation.floors import FLOORS, PCA, PIXELS, UNTRAINED

Scores = Mapping[str, float]
AGREEMENT = "view-agreement"
NUMBERS = (
    AGREEMENT,
    "effective-rank",
    "mean-cosine",
    "own-site",
    "cluster-agreement",
    "stability",
    "cluster-balance",
    "kmeans-agreement",
    "kmeans-stability",
    "kmeans-balance",
)
"""Columns of the table beside the floors."""
MARGIN = 0.02
"""Share of samples by which views must find each other more often than by any floor."""
LEAST_RATIO, LEAST_GAIN = 1.2, 0.005
"""By how much views must find each other more often than by untrained weights, whose seeds alone differ by a tenth."""
TOO_EASY = 0.98
LEAST_RANK, MOST_COSINE = 2.0, 0.99
HIGH_COSINE, MORE_COSINE = 0.9, 0.15
"""Mean cosine, and how far it must lie above that of untrained weights, at which half of their rank is a collapse too."""
LEAST_KAPPA, LEAST_BALANCE, LEAST_STABILITY = 0.1, 0.3, 0.2
SITE_MARGIN, LEARNT_SITE = 0.2, 0.05
ALIKE = 0.995
"""Mean cosine of raw pixels from which on the images themselves are nearly the same."""
REMEDIES = (
    "train longer (federation.rounds), change training.learning_rate, or choose views that fit the images (views.preset; "
    "'unisono views' shows them)"
)


@dataclass(frozen=True)
class Truth:
    """Sentences about what was learnt.

    Args:
        sentences: facts.
        warnings: what is wrong, each with a remedy.
    """

    sentences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def tell(probes: Scores, floors: Mapping[str, Scores]) -> Truth:
    """Return what a run's numbers say beside those of pixels and untrained weights; nothing without the probe ``unlabelled``.

    Args:
        probes: scores of the encoder, by name.
        floors: as ``measure_floors`` gave them.
    """
    if AGREEMENT not in probes:
        return Truth()
    sentences, warnings = [], []
    found = {name: floors[name][AGREEMENT] for name in FLOORS if AGREEMENT in floors.get(name, {})}
    collapsed = _collapse(probes, floors)
    if found:
        fact = (
            f"two views of an image find each other among up to 1,000 images in {probes[AGREEMENT]:.0%} of cases"
            f" ({', '.join(f'{name} {value:.0%}' for name, value in found.items())})"
        )
        if max(found.values()) >= TOO_EASY:
            sentences.append(f"Whether something was learnt cannot be told by views, which change too little: {fact}.")
        elif probes[AGREEMENT] >= max(found.values()) + MARGIN:
            sentences.append(f"Something was learnt: {fact}.")
        elif not collapsed and probes[AGREEMENT] >= LEAST_RATIO * found.get(UNTRAINED, 1.0) + LEAST_GAIN:
            sentences.append(
                f"Something was learnt, though by views no more than pixels show: {fact}; longer training may help."
            )
        else:
            warnings.append(f"Nothing was learnt that pixels or untrained weights do not show: {fact}; {REMEDIES}.")
    if collapsed:
        warnings.append(collapsed)
    site, site_warning = _site(probes, floors)
    sentences += [site] if site else []
    warnings += [site_warning] if site_warning else []
    return Truth(tuple(sentences), (*warnings, *_clusters(probes)))


def _collapse(probes: Scores, floors: Mapping[str, Scores]) -> str:
    """Return a warning where nearly all samples have the same features."""
    rank, cosine = probes["effective-rank"], probes["mean-cosine"]
    before = floors.get(UNTRAINED, {})
    narrower = rank <= before.get("effective-rank", 0.0) / 2
    closer = cosine >= max(HIGH_COSINE, before.get("mean-cosine", 1.0) + MORE_COSINE)
    # A few samples span a few dimensions at most, whatever the encoder makes of them.
    least = min(LEAST_RANK, floors.get(PIXELS, {}).get("effective-rank", LEAST_RANK))
    if rank >= least and cosine <= MOST_COSINE and not (narrower and closer):
        return ""
    fact = f"effective rank {rank:.1f}, mean cosine {cosine:.3f}"
    fact += f"; untrained weights {before['effective-rank']:.1f}, {before['mean-cosine']:.3f}" if narrower and closer else ""
    if floors.get(PIXELS, {}).get("mean-cosine", 0.0) >= ALIKE:
        return f"The features are nearly the same for all images ({fact}), and so are the images: are they the right ones?"
    return f"The encoder has collapsed: its features are nearly the same for all images ({fact}); lower training.learning_rate."


def _site(probes: Scores, floors: Mapping[str, Scores]) -> tuple[str, str]:
    """Return a sentence about sites, and a warning where features tell them apart far better than pixels do."""
    own = probes.get("own-site")
    if own is None:
        return "", ""
    known = {name: floors[name]["own-site"] for name in FLOORS if "own-site" in floors.get(name, {})}
    beside = f" ({', '.join(f'{name} {value:.0%}' for name, value in known.items())})" if known else ""
    fact = f"Of the ten nearest neighbours of an image, {own:.0%} come from its own site{beside}."
    pixels = max((known[name] for name in (PIXELS, PCA) if name in known), default=1.0)
    # Where pixels tell most sites apart, half of the rest is far beyond them; what untrained weights show was not learnt.
    if own < pixels + min(SITE_MARGIN, (1 - pixels) / 2) or own < known.get(UNTRAINED, 0.0) + LEARNT_SITE:
        return fact, ""
    return "", (
        f"The encoder has learnt to tell the sites apart far better than pixels do: {fact[0].lower()}{fact[1:-1]}; either "
        "the sites show different things, or it looks at their cameras: strengthen the views of brightness, colour and blur "
        "(views)."
    )


def _clusters(probes: Scores) -> list[str]:
    """Return warnings about clusters: those of the method, or of k-means where it has none."""
    found = []
    kind = "cluster" if "cluster-agreement" in probes else "kmeans"
    agreement, balance = probes.get(f"{kind}-agreement"), probes.get(f"{kind}-balance")
    stability = probes.get("stability" if kind == "cluster" else "kmeans-stability")
    whose = "The clusters" if kind == "cluster" else "The clusters of k-means on the features"
    if agreement is not None and agreement < LEAST_KAPPA:
        found.append(
            f"{whose} are at chance: two views of an image share a cluster hardly more often than two images do (kappa "
            f"{agreement:.2f}, where 1 is always and 0 is chance); {REMEDIES}."
        )
    if balance is not None and balance < LEAST_BALANCE:
        found.append(f"{whose} are empty but for a few (balance {balance:.2f} of 1); choose fewer of them, or {REMEDIES}.")
    if stability is not None and stability < LEAST_STABILITY:
        found.append(
            f"{whose} still change from round to round (adjusted Rand index {stability:.2f}, where 1 is no change); train "
            "longer."
        )
    return found
