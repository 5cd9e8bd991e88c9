"""Block formats of quantised weights and their dequantisation."""
