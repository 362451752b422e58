"""The config's device: the processor needs no torch, CUDA that is missing is told."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from speclayers.errors import UserError
from speclayers.geometry.device import PROCESSOR, TorchDevice, open_device


def test_the_processor_leaves_arrays_alone():
    values = np.ones(3)
    assert open_device("cpu") is PROCESSOR
    assert PROCESSOR.get(PROCESSOR.put(values)) is values


def test_tensors_keep_float64():
    values = np.random.default_rng(0).standard_normal((2, 3))
    device = TorchDevice("cpu")
    assert device.put(values).dtype == torch.float64
    np.testing.assert_array_equal(device.get(device.put(values)), values)


def test_cuda_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"geometry\.device: found cuda, but torch sees no CUDA device"):
        open_device("cuda")


def test_cuda_without_torch_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"geometry\.device: found cuda, which needs torch"):
        open_device("cuda")


def test_geometry_on_the_processor_imports_no_torch():
    code = "import sys, speclayers.geometry.measure, speclayers.geometry.shards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
