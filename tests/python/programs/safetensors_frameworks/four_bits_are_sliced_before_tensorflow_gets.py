"""Slices 4-bit tensors before they become TensorFlow tensors."""

import sys

import numpy as np

import pagestream.safetensors as ours

whole = ours.safe_open(sys.argv[1], "np").get_tensor("t")
part = ours.safe_open(sys.argv[1], "tf").get_slice("t")
for index in (np.s_[...], np.s_[::-1, 1:5], np.s_[None, 2]):
    assert np.array_equal(np.asarray(part[index]).view("u1"), whole[index].view("u1")), index
print("four bits: well")
