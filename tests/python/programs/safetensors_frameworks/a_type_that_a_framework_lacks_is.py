"""A type that a framework lacks raises a SafetensorError that names the type."""

import sys

import pagestream.safetensors as ours

try:
    ours.safe_open(sys.argv[1], "mlx").get_tensor("t")
except ours.SafetensorError as error:
    print(error)
