from __future__ import annotations

from pathlib import Path

from PIL import Image

from tests.cli.conftest import Command


def rows(text: str) -> list[list[str]]:
    return [line.replace(",", "").split() for line in text.splitlines() if line.split() and line.split()[0].isdigit()]


def test_table_shows_every_device_and_its_neighbors(unisono: Command) -> None:
    text = unisono("graph", "--clients", 10).out
    assert "10 clients, 15 links, 3.0 neighbours each, connected" in text
    found = {int(client): (int(links), {int(other) for other in others}) for client, links, *others in rows(text)}
    assert list(found) == list(range(10))
    assert sum(links for links, _ in found.values()) == 30
    for client, (links, others) in found.items():
        assert len(others) == links
        assert all(client in found[other][1] for other in others)


def test_ring(unisono: Command) -> None:
    assert rows(unisono("graph", "--topology", "ring", "--clients", 3).out) == [
        ["0", "2", "1", "2"],
        ["1", "2", "0", "2"],
        ["2", "2", "0", "1"],
    ]


def test_seed_and_degree_decide(unisono: Command) -> None:
    first, again, other = (unisono("graph", "--seed", seed).out for seed in (0, 0, 1))
    assert first == again != other
    assert "4.0 neighbours each" in unisono("graph", "--mean-degree", 4).out


def test_parts_are_counted(unisono: Command) -> None:
    text = unisono("graph", "--topology", "edges", "--clients", 4, "--set", "graph.edges=[[0, 1], [2, 3]]").out
    assert "in 2 separate parts" in text


def test_recipe_gives_the_devices(unisono: Command) -> None:
    assert "15 links" in unisono("graph", "cfcl/fashion-mini").out


def test_picture(unisono: Command, tmp_path: Path) -> None:
    arguments = ("--clients", 5, "--set", "data.dataset=digits", "--set", "partition.classes_per_client=4")
    assert "Drawn in links.png" in unisono("graph", *arguments, "--plot", "links.png").out
    with Image.open(tmp_path / "links.png") as image:
        assert min(image.size) > 300


def test_mistakes(unisono: Command) -> None:
    assert "graph.topology must be" in unisono("graph", "--topology", "star").sentence
    assert "graph.mean_degree must be higher" in unisono("graph", "--mean-degree", 1).sentence
    wrong = unisono("graph", "--set", "data.dataset=digits", "--plot", "links.nonsense")
    assert "--plot must name an image file" in wrong.sentence
