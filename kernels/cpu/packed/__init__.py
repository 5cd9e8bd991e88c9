"""Quantised weights in packed tiles, the only copy that a CPU holds, and the products that read them."""
