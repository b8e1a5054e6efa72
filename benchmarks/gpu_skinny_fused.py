"""Products of few rows with what belongs to them in one launch: checked against float64, then µs in a CUDA graph beside
the launches that they replace; then layers of π0.5's expert, one after another.

    python benchmarks/gpu_skinny_fused.py --out benchmarks/results/skinny_fused.json

Figures are made as in ``gpu_skinny.py``. ``layer``: 18 layers of the expert at 50 rows over 1,018 keys, each launch
reading what the one in front wrote, µs of a layer. The whole inference: ``pi05_gpu.py --case 3cameras_layers``.
"""

from __future__ import annotations

import argparse
from typing import Any

from gpu_parts import compiled, main_of
from gpu_skinny_fused_calls import times
from gpu_skinny_fused_checks import check_heads, check_residual, head_cases, head_shape, residual_cases, residual_shape
from gpu_skinny_fused_layers import layer
from gpu_skinny_weights import EXPERT, FORMATS, TIMED, shape_of


def ahead(pool: Any) -> None:
    """Compile what will be needed side by side."""
    shapes = [(residual_shape(**case), case["m"]) for case in residual_cases()]
    shapes += [(head_shape(**case), case["m"]) for case in head_cases()]
    for form_name in TIMED:
        form = FORMATS[form_name]
        shapes += [
            (residual_shape(form_name, *EXPERT[n], splits=s), 50) for n in ("o", "down") for s in (None, 2, 4, 8)
        ]
        shapes += [(head_shape(form_name, splits=splits), 50) for splits in (None, 1, 4)]
        shapes += [(shape_of(*EXPERT[name], **form), 50) for name in EXPERT]
        shapes.append((shape_of(*EXPERT["gate_up"], **form, activation="gelu_tanh"), 50))
    shapes = [(shape, m) for shape, m in shapes if shape.objection() is None]
    for source in ("skinny.cu", "skinny_pair.cu"):
        defines = [shape.defines(m) for shape, m in shapes if shape.source == source]
        compiled(pool, source, list({tuple(sorted(d.items())): d for d in defines}.values()))
    compiled(pool, "attention.cu", [{"HD": 256, "GROUP": 8, "SLABS": 1, "SPLITS": s, "STAGES": 1} for s in (1, 16)])
    compiled(pool, "norm.cu", [{"DIM": 1024, "ADD": 0, "ADAPTIVE": 1, "LATE": late} for late in (0, 1)])


if __name__ == "__main__":
    parts = {"check_residual": check_residual, "check_heads": check_heads, "times": times, "layer": layer}
    main_of(argparse.ArgumentParser(description=__doc__), parts, ahead)
