"""A Keras model of the user's own in place of encoders and dense layers, made by a factory ``module:function``.

``factory(inputs, **model_kwargs)`` gets a dict, observation name -> ``keras.Input`` (float32): numbers ``[size]``, normalised where
that is asked for; choices one-hot ``[width]``; images ``[height, width, channels]``, scaled where that is asked for. It returns one
output tensor ``[None, U]``. The model's variables live among our tensors as ``{scope}/model/{i}/{variable}``: one model object serves
actor and critics, in every program.

Letters: ``M`` rows, ``n`` agents of one call, ``I`` and ``U`` as in `trainers.architecture`.
"""

from __future__ import annotations

import functools
import inspect
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from envs.base import EnvFault
from envs.own_code import NETWORK, OwnCodeError, load
from envs.specs import Observations
from trainers.architecture import Architecture, ArchitectureError, ImageInput, ModelReference, VectorInput
from trainers.graph import Parameters
from trainers.networks import Layout
from trainers.quiet_tensorflow import tf
from trainers.trainer import Weights

import keras  # isort: skip - after TensorFlow, which greets less then

ModelWeights = tuple[tf.Tensor, ...]
"""The model's variables, in its own order."""

Factory = Callable[..., Any]


def output_width(arch: Architecture) -> int:
    """U: outputs of the user's model.

    Raises:
        ArchitectureError: the model cannot be made, or cannot be used; says why.
    """
    return _model(arch).outputs[0].shape[1]


def model_layout(arch: Architecture, scope: str = "actor") -> Layout:
    """Tensors of the user's model in ``"actor"`` or ``"critic"``."""
    return {_tensor_name(scope, i, v): tuple(v.shape) for i, v in enumerate(_model(arch).trainable_variables)}


def initial_model(arch: Architecture, rng: np.random.Generator, scope: str = "actor") -> Weights:
    """First weights of `model_layout`, drawn by the model's own initialisers; one number is taken from `rng`, the seed of them all."""
    reference = arch.model
    model = _build(_factory(reference.factory), reference, arch.vectors, arch.images, int(rng.integers(2**31)))
    return {_tensor_name(scope, i, v): np.array(v.numpy(), np.float32) for i, v in enumerate(model.trainable_variables)}


def call_model(parameters: Parameters, vector: tf.Tensor, images: Sequence[tf.Tensor], arch: Architecture, scope: str) -> tf.Tensor:
    """Network inputs (see `trainers.inputs`; the vector normalised) -> features, float32 ``[M, U]``. M need not be known."""
    variables = [parameters[name] for name in model_layout(arch, scope)]
    inputs, column = {}, 0
    for part in arch.vectors:
        inputs[part.name] = vector[:, column : column + part.width]
        column += part.width
    for image, x in zip(arch.images, images, strict=True):
        inputs[image.name] = _pixels(x, image)
    output, _ = _model(arch).stateless_call(variables, [], list(inputs.values()), training=False)
    return output


class ModelActor:
    """The user's model as a policy calls it: one trace, whatever the number of agents."""

    def __init__(self, arch: Architecture) -> None:
        layout = model_layout(arch, "actor")
        dtypes = {o.name: o.dtype for o in arch.spec.observations}
        self._arch = arch
        self._names = tuple(layout)
        self._dtypes = [np.dtype(dtypes[image.name]) for image in arch.images]

        @tf.function(input_signature=(
            [tf.TensorSpec(shape, tf.float32) for shape in layout.values()],
            tf.TensorSpec((None, arch.vector_width), tf.float32),
            [tf.TensorSpec((None, *image.shape), dtypes[image.name]) for image in arch.images],
        ), autograph=False)  # as where it learns
        def features(variables: list[tf.Tensor], vector: tf.Tensor, images: list[tf.Tensor]) -> tf.Tensor:
            return call_model(dict(zip(layout, variables, strict=True)), vector, images, arch, "actor")

        self._features = features

    def prepare(self, weights: Weights) -> ModelWeights:
        """Copies of the model's tensors, out of those of the policy."""
        return tuple(tf.constant(weights[name].copy()) for name in self._names)  # TensorFlow may keep an array that it is given

    def features(self, weights: ModelWeights, vector: np.ndarray, obs: Observations) -> np.ndarray:
        """Features of `n` agents, float32 ``[n, U]``.

        Args:
            weights: from `prepare`.
            vector: float32 ``[n, I]``, normalised.
            obs: the images are taken from here.
        """
        images = [np.asarray(obs[image.name], dtype) for image, dtype in zip(self._arch.images, self._dtypes, strict=True)]
        return self._features(list(weights), tf.constant(vector), [tf.constant(x) for x in images]).numpy()


def _pixels(x: tf.Tensor, image: ImageInput) -> tf.Tensor:
    """As `trainers.graph.pixels`, for any number of rows."""
    x = tf.transpose(x, [0, *(axis + 1 for axis in image.to_channels_last)])
    x = tf.cast(tf.reshape(x, [-1, image.height, image.width, image.channels]), tf.float32)
    return x * (1.0 / 255.0) if image.scale else x


def _tensor_name(scope: str, index: int, variable: keras.Variable) -> str:
    return f"{scope}/model/{index}/{variable.name}"


# -- the model -------------------------------------------------------------------------------------------------------


def _model(arch: Architecture) -> keras.Model:
    """The one model object of an architecture; its own values are not used."""
    # The function itself is part of the key: a later run in this process may import another module of the same name.
    return _cached(_factory(arch.model.factory), arch.model, arch.vectors, arch.images)


@functools.lru_cache(maxsize=32)
def _cached(factory: Factory, reference: ModelReference, vectors: tuple[VectorInput, ...], images: tuple[ImageInput, ...]) -> keras.Model:
    return _build(factory, reference, vectors, images, seed=0)


def _build(
    factory: Factory, reference: ModelReference, vectors: Sequence[VectorInput], images: Sequence[ImageInput], seed: int
) -> keras.Model:
    if keras.backend.backend() != "tensorflow":
        raise _refusal(reference, f"expected Keras to run on TensorFlow, it runs on {keras.backend.backend()}: unset KERAS_BACKEND")
    shapes = {part.name: (part.width,) for part in vectors}
    shapes.update({image.name: (image.height, image.width, image.channels) for image in images})
    with _seeded(seed):
        inputs = {name: keras.Input(shapes[name], dtype="float32", name=label) for name, label in _input_names(shapes).items()}
        output = _call_factory(factory, reference, inputs)
        _check_output(output, reference)
        try:
            model = keras.Model(list(inputs.values()), output)
        except Exception as error:
            raise _refusal(reference, f"expected an output computed from the inputs alone, Keras says: {error}") from error
    _check_variables(model, reference)
    return model


def _input_names(names: Iterable[str]) -> dict[str, str]:
    """Observation name -> name of its Keras input, where no ``/`` is allowed and no name twice."""
    taken = {name for name in names if "/" not in name}
    labels = {}
    for name in names:
        label = name
        if "/" in name:
            label = name.replace("/", ".")
            while label in taken:
                label += "."
            taken.add(label)
        labels[name] = label
    return labels


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's and NumPy's own generators, from which initialisers without a seed take theirs, begin at `seed`; nothing is left of it."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _call_factory(factory: Factory, reference: ModelReference, inputs: dict[str, Any]) -> Any:
    arguments = json.loads(reference.arguments)
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # built into Python: it has none to ask
        signature = None
    if signature is not None:
        try:
            signature.bind(inputs, **arguments)
        except TypeError as error:
            raise ArchitectureError(("model_kwargs",), arguments, (
                f"expected the arguments of {reference.factory}, which is called as {_called(reference.factory, arguments)} and "
                f"takes {signature}: {error}"
            )) from None
    try:
        return factory(inputs, **arguments)
    except Exception as error:
        raise _refusal(reference, f"{_called(reference.factory, arguments)} raised {type(error).__name__}: {error}") from error


def _called(factory: str, arguments: dict[str, Any]) -> str:
    return f"{factory.rpartition(':')[2]}({', '.join(['inputs', *(f'{key}={value!r}' for key, value in arguments.items())])})"


def _check_output(output: Any, reference: ModelReference) -> None:
    expected = "expected the factory to return one output tensor [None, U] of float32"
    if not isinstance(output, keras.KerasTensor):
        hint = " (return its output: model(list(inputs.values())))" if isinstance(output, keras.Model) else ""
        raise _refusal(reference, f"{expected}, received {type(output).__name__}{hint}")
    if len(output.shape) != 2 or output.shape[1] is None or output.dtype != "float32":
        raise _refusal(reference, f"{expected}, received {output.dtype} {list(output.shape)}; flatten or pool what has more axes")


def _check_variables(model: keras.Model, reference: ModelReference) -> None:
    frozen = [v.path for v in model.non_trainable_variables]
    if frozen:
        raise _refusal(reference, (
            f"expected trainable variables only, received {', '.join(frozen)}, which training would never change in step with the "
            "weights: leave out batch normalisation and dropout (LayerNormalization and GroupNormalization work), and freeze nothing"
        ))
    other = [f"{v.path} ({v.dtype})" for v in model.trainable_variables if v.dtype != "float32"]
    if other:
        raise _refusal(reference, f"expected variables of float32, received {', '.join(other)}")


# -- the factory -----------------------------------------------------------------------------------------------------


def _factory(reference: str) -> Factory:
    try:
        return load(NETWORK, reference)
    except OwnCodeError as error:
        raise ArchitectureError(("model",), reference, str(error)) from error
    except EnvFault as fault:
        raise _refusal(reference, f"importing its module raised {fault}") from fault.__cause__


def _refusal(reference: ModelReference | str, message: str) -> ArchitectureError:
    """The error at ``network_settings.model``."""
    factory = reference if isinstance(reference, str) else reference.factory
    return ArchitectureError(("model",), factory, f"model {factory!r}: {message}")
