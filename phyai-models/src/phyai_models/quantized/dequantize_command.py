"""Write the linear weights of a checkpoint, whatever its quantization, as float32 to one safetensors file."""

from __future__ import annotations

import argparse

from phyai.cli.command import Context, Exit

EXAMPLES = """
  phyai dequantize ./checkpoint --out weights.safetensors
  phyai dequantize ./checkpoint --out head.safetensors --name lm_head
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a checkpoint folder")
    parser.add_argument("--out", required=True, metavar="FILE", help="the safetensors file to write; it must not exist")
    parser.add_argument("--name", action="append", metavar="MODULE", help="only this layer (may be repeated)")


def main(args: argparse.Namespace, context: Context) -> int:
    from phyai_models.quantized.dequantize import write_dequantized

    with context.progress("dequantizing") as advance:
        count = write_dequantized(args.checkpoint, args.out, args.name, catalog=context.catalog, progress=advance)
    if context.json:
        context.emit({"out": args.out, "layers": count})
    else:
        context.say(f"{count} layers written to {args.out}")
    return Exit.OK
