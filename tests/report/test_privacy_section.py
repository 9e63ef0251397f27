from __future__ import annotations

from unisono.report.privacy_section import privacy_blocks
from unisono.testing.tiny import tiny_config


def test_the_declared_shares_and_the_epsilon_spent() -> None:
    tree = tiny_config("simclr", {"consent": {"allow_raw_representations": False, "share_data": True}}).as_tree()
    ledger: list[dict[str, object]] = [
        {"round": 0, "epsilon": 0.5, "delta": 1e-5, "covers": ["encoder"], "does_not_cover": ["centroids"]},
        {"round": 1, "epsilon": 0.8, "delta": 1e-5, "covers": ["encoder"], "does_not_cover": ["centroids"]},
    ]
    about = {"shares": [["encoder", "MEAN", "PARAMETERS"], ["centroids", "STACK", "STATISTICS"]]}
    ledger.append({"round": 1, "what": "centroids", "centroid_epsilon": 3.0, "centroid_delta": 1e-6})
    promises = {
        "model_updates": "Noisy.",
        "centroids": {"statement": "Local.", "epsilon_by_client": {"0": 3.0, "4": 1.5}},
        "warnings": ["Careful."],
    }
    warning, shares, words, spent, by_client = privacy_blocks(tree, about, ledger, promises)
    assert (warning["text"], warning["tone"]) == ("Careful.", "warning")
    assert words["pairs"] == [["model updates", "Noisy."], ["centroids", "Local."]]
    assert by_client["rows"] == [["0", 3.0], ["4", 1.5]]
    assert shares["rows"][1] == ["centroids", "kept apart by client", "statistics"]
    assert shares["note"].endswith("Consent was given to send samples.")
    assert (spent["series"][0]["x"], spent["series"][0]["y"]) == ([1, 2], [0.5, 0.8])
    assert (spent["series"][1]["x"], spent["series"][1]["y"]) == ([2], [3.0])
    assert spent["note"] == "Model updates: at delta = 1e-05. Not covered: centroids. Centroids: at delta = 1e-06."


def test_no_noise_is_said_plainly() -> None:
    (words,) = privacy_blocks(tiny_config("simclr").as_tree(), {}, [], {})
    assert "not differentially private" in words["text"]
