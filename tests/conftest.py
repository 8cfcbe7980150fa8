"""What every test process has: TensorFlow on one thread, as a trainer has it, whichever test is the first to load it."""

from raytrain.tensorflow_setup import set_up_tensorflow

set_up_tensorflow(threads=1)
