"""Quantizing while loading: beside the quantized model at most its largest layer is held."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import re, sys
from pathlib import Path
import torch
from phyai.quant import plan_from_policy
from phyai_models.weights import Checkpoint, WeightSource

torch.set_num_threads(1)
def status(field):
    return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

scheme = plan_from_policy({"default": {"weight": {"dtype": "int4", "group_size": 128}}}).default
source = WeightSource(Checkpoint.open(sys.argv[1]))
source.quantize("small.weight", (64, 4096), scheme, "rtn_mse", torch.device("cpu"))  # what is loaded once
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
kept = [source.quantize(f"l{i}.weight", (4096, 4096), scheme, "rtn_mse", torch.device("cpu")) for i in range(3)]
print(status("VmHWM") - before, sum(weight.nbytes() for weight in kept))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc/self/clear_refs (Linux)")
def test_peak_memory_is_the_quantized_model_and_the_largest_layer(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    layer = torch.randn(4096, 4096).bfloat16()
    state = {f"l{i}.weight": layer.clone() for i in range(3)} | {"small.weight": layer[:64].clone()}
    save_file(state, tmp_path / "model.safetensors")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    peak, quantized = map(int, ran.stdout.split())
    assert quantized == 3 * (4096 * 4096 // 2 + 4096 * 32 * 4)
    assert quantized <= peak <= quantized + layer.nbytes
