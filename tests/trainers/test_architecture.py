"""From spaces and network settings to the shape of the networks."""

from __future__ import annotations

import pickle

import pytest

from envs.specs import ActionSpec, BehaviorSpec, ObservationSpec
from tests.trainers.policies import BINARY, CATEGORICAL, DICT_NETWORK, DICT_OBS, GRID, IMAGE, MIXED_OBS
from trainers.architecture import ArchitectureError, MemoryShape, VectorInput, architecture
from trainers.settings import NetworkSettings

ACTION = ActionSpec("discrete", discrete_branches=(2,))


def arch_of(*observations, **network):
    return architecture(BehaviorSpec(observations, ACTION), NetworkSettings(**network))


def image(shape, dtype="uint8", **changes):
    return ObservationSpec("image", shape, dtype, "image", is_uint8_image=dtype == "uint8", **changes)


def test_parts_of_the_vector():
    arch = arch_of(*MIXED_OBS, normalize=True)
    assert arch.vectors == (
        VectorInput("speed", 2, 2, normalized=True), VectorInput("kind", 2, 5, (3, 2), (0, -1)), VectorInput("flags", 4, 4),
    )
    assert (arch.vector_width, arch.normalized_width, arch.encoded_width) == (11, 2, 11)
    assert [o.name for o in arch.normalized] == ["speed"]
    assert arch.images == ()


def test_normalisation_is_asked_for_one_by_one():
    vectors = [ObservationSpec(name, (2,)) for name in "abcd"]
    arch = arch_of(*vectors, normalize=True, observations={"b": {"normalize": False}, "c": {"normalize": True}})
    assert [(part.name, part.normalized) for part in arch.vectors] == [("a", True), ("c", True), ("d", True), ("b", False)]
    arch = arch_of(*vectors, observations={"c": {"normalize": True}})
    assert [part.name for part in arch.vectors] == ["c", "a", "b", "d"] and arch.normalized_width == 2


@pytest.mark.parametrize("observation, layout, size, scale, ambiguous", [
    # C60: the four spaces named there, then frames, greys, and what cannot be told apart.
    (image((84, 84, 3)), "HWC", (84, 84, 3), True, False),
    (image((3, 84, 84)), "CHW", (84, 84, 3), True, False),
    (image((84, 84, 1), "float32"), "HWC", (84, 84, 1), False, False),
    (image((40, 40)), "HW", (40, 40, 1), True, False),
    (image((4, 84, 84, 3)), "SHWC", (84, 84, 12), True, False),
    (image((4, 3, 84, 80)), "SCHW", (84, 80, 12), True, False),
    (image((210, 160, 3)), "HWC", (210, 160, 3), True, False),
    (image((30, 40, 30)), "HWC", (30, 40, 30), True, True),
])
def test_images_are_read_by_their_shape(observation, layout, size, scale, ambiguous):
    found = arch_of(observation).images[0]
    assert (found.layout, (found.height, found.width, found.channels)) == (layout, size)
    assert (found.scale, found.is_ambiguous, found.encoder) == (scale, ambiguous, "simple")


def test_grid_codes_are_not_scaled():
    """C60: 7 x 7 x 3 codes."""
    found = arch_of(image((7, 7, 3), "int64"), vis_encode_type="match3").images[0]
    assert (found.layout, found.scale, found.encoder) == ("HWC", False, "match3")


@pytest.mark.parametrize("settings, layout, scale, encoder", [
    ({"channels": "first"}, "CHW", True, "nature_cnn"), ({"channels": "last"}, "HWC", True, "nature_cnn"),
    ({"scale": False}, "HWC", False, "nature_cnn"), ({"encoder": "resnet"}, "HWC", True, "resnet"),
])
def test_images_are_read_as_the_settings_say(settings, layout, scale, encoder):
    found = arch_of(image((40, 50, 40)), vis_encode_type="nature_cnn", observations={"image": settings}).images[0]
    assert (found.layout, found.scale, found.encoder) == (layout, scale, encoder)
    assert found.is_ambiguous == ("channels" not in settings)


@pytest.mark.parametrize("layout_of, order", [
    ((40, 41), (0, 1)), ((40, 41, 3), (0, 1, 2)), ((3, 40, 41), (1, 2, 0)), ((4, 40, 41, 3), (1, 2, 0, 3)), ((4, 3, 40, 41), (2, 3, 0, 1)),
])
def test_permutation_to_channels_last(layout_of, order):
    """A stack of frames becomes the slowest of the channels: the oldest frame's colours come first."""
    assert arch_of(image(layout_of)).images[0].to_channels_last == order


def test_kind_is_what_the_settings_say():
    arch = arch_of(IMAGE, ObservationSpec("plane", (20, 20, 1), "float32"), observations={
        "image": {"kind": "vector", "normalize": True}, "plane": {"kind": "image", "encoder": "resnet"}})
    assert [(part.name, part.size, part.normalized) for part in arch.vectors] == [("image", 3 * 21 * 24, True)]
    assert [(found.name, found.encoder) for found in arch.images] == [("plane", "resnet")]


def test_widths():
    arch = arch_of(*DICT_OBS, hidden_units=32, **DICT_NETWORK)
    assert (arch.vector_width, arch.image_units, arch.encoded_width) == (11, 32, 75)
    assert [found.name for found in arch.images] == ["grid", "image"]
    assert arch.layers == (32, 32) and arch_of(IMAGE, layers=(9, 5)).layers == (9, 5) and arch_of(IMAGE, num_layers=0).layers == ()
    assert arch_of(IMAGE, layers=(9, 5), hidden_units=7).image_units == 7


def test_memory():
    assert arch_of(IMAGE).memory is None and arch_of(IMAGE).memory_size == 0
    arch = arch_of(IMAGE, memory={"sequence_length": 18, "memory_size": 64})
    assert arch.memory == MemoryShape(18, 64, 4) and arch.memory.units == 32 and arch.memory_size == 64
    assert arch_of(IMAGE, memory={"burn_in": 0}).memory.burn_in == 0


def test_equal_settings_give_equal_architectures():
    """They share compiled programs; the order of a factory's arguments makes no difference, their values do."""
    def make(**kwargs):
        return arch_of(*DICT_OBS, **DICT_NETWORK, model="nets:make", model_kwargs=kwargs)

    assert make(a=1, b=[2]) == make(b=[2], a=1) and hash(make(a=1, b=[2])) == hash(make(b=[2], a=1))
    assert make(a=1) != make(a=2)
    assert pickle.loads(pickle.dumps(make(a=1))) == make(a=1)


def test_architecture_as_given_differs_in_normalising_only():
    normalized, plain = arch_of(*MIXED_OBS, normalize=True), arch_of(*MIXED_OBS)
    given = normalized.as_given()
    assert given != normalized and given.normalized == () and given.vector_width == normalized.vector_width
    assert [part.name for part in given.vectors] == [part.name for part in normalized.vectors], "columns stay where they are"
    assert plain.as_given() == plain


@pytest.mark.parametrize("encoder, shape, key, message", [
    ("nature_cnn", (30, 84, 3), ("vis_encode_type",), (
        r"at least 36 × 36 pixels for the encoder nature_cnn, 'image' has 30 × 84 .*channels last\); encoders that fit: "
        r"simple, resnet, match3, fully_connected")),
    ("resnet", (3, 14, 20), ("vis_encode_type",), r"at least 15 × 15 .*14 × 20 .*channels first\); encoders that fit: match3, fully_connected"),
])
def test_image_too_small_for_its_encoder_is_refused_with_the_ones_that_fit(encoder, shape, key, message):
    with pytest.raises(ArchitectureError, match=message) as error:
        arch_of(image(shape), vis_encode_type=encoder)
    assert (error.value.key, error.value.value) == (key, encoder)
    assert isinstance(error.value, ValueError)
    with pytest.raises(ArchitectureError) as error:
        arch_of(image(shape), vis_encode_type="match3", observations={"image": {"encoder": encoder}})
    assert (error.value.key, error.value.value) == (("observations", "image", "encoder"), encoder)


def test_a_model_of_the_users_takes_images_of_any_size():
    assert arch_of(image((3, 4, 3)), model="nets:make").images[0].height == 3


@pytest.mark.parametrize("observation, settings, key, message", [
    (MIXED_OBS[1], {"encoder": "resnet"}, "encoder", "encoder only for an image, 'speed' is part of the vector; remove it$"),
    (MIXED_OBS[1], {"channels": "first"}, "channels", "channels only for an image"),
    (MIXED_OBS[1], {"scale": True}, "scale", "scale only for an image"),
    (MIXED_OBS[1], {"kind": "image"}, "kind", r"2, 3 or 4 axes as an image, 'speed' has the shape \(2,\)"),
    (CATEGORICAL, {"kind": "vector"}, "kind", "no kind for 'kind', which is categorical"),
    (BINARY, {"kind": "image"}, "kind", "no kind for 'flags', which is binary"),
    (CATEGORICAL, {"normalize": True}, "normalize", "normalize only for a vector, 'kind' is categorical"),
    (IMAGE, {"normalize": True}, "normalize", "normalize only for a vector, 'image' is an image"),
    (image((20, 20)), {"channels": "last"}, "channels", r"3 or 4 axes, 'image' has the shape \(20, 20\)"),
    (GRID, {"kind": "vector", "scale": True}, "scale", "scale only for an image, 'grid' is part of the vector"),
])
def test_settings_that_do_not_suit_an_observation_are_refused(observation, settings, key, message):
    with pytest.raises(ArchitectureError, match=message) as error:
        arch_of(observation, vis_encode_type="fully_connected", observations={observation.name: settings})
    assert (error.value.key, error.value.value) == (("observations", observation.name, key), settings[key])


def test_unknown_observation_is_refused_with_the_nearest():
    with pytest.raises(ArchitectureError, match=r"an observation of the environment \(kind, speed, flags\), received 'sped'. Did you mean 'speed'\?") as error:
        arch_of(*MIXED_OBS, observations={"sped": {"normalize": True}})
    assert (error.value.key, error.value.value) == (("observations", "sped"), {"normalize": True})
