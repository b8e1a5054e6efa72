"""Attention over a cache: few queries and many keys (``csrc/attention.cu``), and many queries
(``csrc/attention_prefill.cu``)."""
