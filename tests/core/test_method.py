"""What a method is told about its run."""

from unisono.core.config import Section
from unisono.core.method import Setting


class Views(Section):
    flip: float = 0.5


class Model(Section):
    width: float = 1.0


def test_a_setting_gives_the_runs_table_or_its_defaults() -> None:
    setting = Setting((1, 8, 8), (0.5,), (0.25,), None, 4, 2, (Views(flip=0.1),))
    assert setting.section(Views) == Views(flip=0.1)
    assert setting.section(Model) == Model()
