"""Sources of the zoo's models: the arguments of exported networks."""

from benchmarks.zoo.models import MODELS
from benchmarks.zoo.sources import ExportedNetwork


def test_inputs_of_a_list_are_one_argument() -> None:
    source = ExportedNetwork("network", (), {}, lists={"past": "past_"})
    values = {"input_ids": 0, "past_0_key": 1, "attention_mask": 2, "past_0_value": 3}
    assert source.arguments(values) == {"input_ids": 0, "attention_mask": 2, "past": [1, 3]}


def test_every_input_of_the_cache_has_dynamic_sizes() -> None:
    model = MODELS["gpt2_cached"]
    assert isinstance(model.source, ExportedNetwork)
    feeds = model.inputs({"batch": 2, "past": 3})
    assert list(feeds) == list(model.source.dynamic)
    sizes = {"batch": 2, "past": 3, "total": 4}
    for name, axes in model.source.dynamic.items():
        assert [feeds[name].shape[axis] for axis in axes] == [sizes[x] for x in axes.values()]
