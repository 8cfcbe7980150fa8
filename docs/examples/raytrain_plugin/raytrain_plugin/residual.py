"""A network: dense layers that add to what they are given, in Keras."""


def residual(inputs, units=64, blocks=2):
    """All observations joined, a dense layer, and blocks of x + tanh(dense(norm(x)))."""
    import keras  # not at the top: samplers and signals of this package do without

    parts = list(inputs.values())
    x = keras.layers.Dense(units)(parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts))
    for _ in range(blocks):
        x = keras.layers.Add()([x, keras.layers.Dense(units, activation="tanh")(keras.layers.LayerNormalization()(x))])
    return x
