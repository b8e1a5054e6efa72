"""Importers: one module for each tool that writes quantized checkpoints.

A third party adds one through an entry point in the group ``phyai.importers`` whose module has
``phyai_importers()``; the built-in ones have the same form.
"""

from phyai.quant.importers.base import FoundConfig, Importer, Recognized, Refuse, Refused

_HERE = "phyai.quant.importers."

#: The built-in importers. One that knows a configuration keeps all that come after it from seeing it.
BUILTIN: tuple[Importer, ...] = (
    Importer("compressed-tensors", _HERE + "compressed_tensors:recognize", "llm-compressor, compressed-tensors"),
    Importer("modelopt", _HERE + "modelopt:recognize", "NVIDIA ModelOpt"),
    Importer("fp8", _HERE + "hf_fp8:recognize", "flat FP8 and MXFP8: DeepSeek, transformers, AutoFP8"),
    Importer("gptq", _HERE + "gptq:recognize", "AutoGPTQ, GPTQModel"),
    Importer("awq", _HERE + "awq:recognize", "AutoAWQ, GPTQModel"),
    Importer("torchao", _HERE + "torchao:recognize", "torchao tensors in safetensors"),
    Importer("known-unsupported", _HERE + "refusals:recognize", "tools refused by name"),
)

__all__ = ["BUILTIN", "FoundConfig", "Importer", "Recognized", "Refuse", "Refused"]
