"""The model runner: one planned batch on one device, kernel by kernel or by CUDA graphs, and sampling.

Knows device, model and the scheduler's plan; never the scheduler itself.
"""
