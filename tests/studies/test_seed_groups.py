from __future__ import annotations

from pathlib import Path

from tests.studies.test_comparison import make_run
from unisono.studies.comparison import compare

MANY = {
    "partition": {"alpha": 9.0, "num_clients": 7},
    "training": {"local_epochs": 3, "learning_rate": 0.5, "batch_size": 11},
}


def test_seeds_that_start_from_runs_of_their_own_seed_are_one_group(tmp_path: Path) -> None:
    def start(name: str, seed: int, origin: str) -> Path:
        return make_run(tmp_path / name, seed, 0.6, {"model": {"pretrained": origin}})

    own = [start(f"own-{seed}", seed, f"runs/fedu_seed-{seed}") for seed in (0, 1, 12)]
    (group,) = compare(own).groups
    assert [run.seed for run in group.runs] == [0, 1, 12]
    same = [start(f"same-{seed}", seed, "runs/fedu_seed-0") for seed in (0, 1, 2)]
    (group,) = compare(same).groups
    assert len(group.runs) == 3, "all start from one encoder, which is that of the first one's seed"
    other = [start(f"other-{seed}", seed, f"runs/fedx_seed-{seed}") for seed in (0, 1)]
    longer = [start("longer", 1, "runs/fedu_seed-11")]
    groups = compare([*own, *other, *longer]).groups
    assert [group.label for group in groups] == [
        "simclr, pretrained runs/fedu_seed-N",
        "simclr, pretrained runs/fedx_seed-N",
        "simclr, pretrained runs/fedu_seed-11",
    ]


def test_names_of_groups_do_not_hold_a_seed(tmp_path: Path) -> None:
    def labels(*names: str) -> list[str]:
        runs = [
            make_run(tmp_path / name.format(seed), seed, 0.6, MANY if place else None)
            for place, name in enumerate(names)
            for seed in (0, 1)
        ]
        return [group.label for group in compare(runs).groups]

    assert labels("few_all_seed-{}", "many_all_seed-{}") == ["few_all", "many_all"]
    assert labels("few-{}", "many-{}") == ["few", "many"]
    assert labels("a/one_seed-{}", "b/one_seed-{}") == [str(tmp_path / name / "one") for name in "ab"]
