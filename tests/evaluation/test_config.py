import pytest

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.evaluation.config import NEED_LABELS, EvaluationConfig, check_probes, chosen_probes


def config(**values: object) -> EvaluationConfig:
    return make_section(EvaluationConfig, values, "evaluation")


def test_defaults_suit_what_there_is():
    assert chosen_probes(config(), has_labels=True, has_cluster_model=False) == ("linear", "knn", "labels-10")
    assert chosen_probes(config(), has_labels=False, has_cluster_model=True) == ("alignment", "unlabelled", "clusters")
    nothing_held_out = chosen_probes(config(), has_labels=True, has_cluster_model=True, held_out=False)
    assert nothing_held_out == ("kmeans", "unlabelled", "clusters")
    assert chosen_probes(config(probes=["knn"]), has_labels=True, has_cluster_model=True) == ("knn",)


@pytest.mark.parametrize("name", NEED_LABELS)
def test_labels_asked_for_and_missing(name):
    with pytest.raises(UserError, match=rf"evaluation\.probes asks for '{name}', which needs labels"):
        check_probes(config(probes=[name]), has_labels=False)


def test_what_else_is_missing_is_named():
    with pytest.raises(UserError, match=r"'linear' learns from training samples.*see data\.part"):
        check_probes(config(probes=["linear"]), has_labels=True, num_test_samples=0)
    with pytest.raises(UserError, match="needs training samples"):
        check_probes(config(), has_labels=False, num_train_samples=0)
    with pytest.raises(UserError, match="'clusters', but the method assigns none"):
        check_probes(config(probes=["clusters"]), has_labels=True, has_cluster_model=False)
    for name in ("alignment", "unlabelled"):
        with pytest.raises(UserError, match=f"'{name}' compares augmented views"):
            check_probes(config(probes=[name]), has_labels=True, has_views=False)
    with pytest.raises(UserError, match="kmeans_clusters is required"):
        check_probes(config(probes=["kmeans"]), has_labels=False)
    check_probes(config(), has_labels=False, num_test_samples=0)
    few = config(probes=["head-easyfl-1", "head-easyfl-10"])
    with pytest.raises(UserError, match=r"'head-easyfl-10' fine-tunes with 10%.*data\.held_out_labels = 0\.01 holds fewer out"):
        check_probes(few, has_labels=True, held_out_labels=0.01)
    for share in (0.0, 0.1, 0.2):
        check_probes(few, has_labels=True, held_out_labels=share)


def test_unknown_probes_list_the_known_ones():
    with pytest.raises(UserError, match=r"evaluation\.probes\.0 must be .*'linear-sgd'.*got 'lineal'"):
        config(probes=["lineal"])
