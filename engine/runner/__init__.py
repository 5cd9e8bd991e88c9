"""The model runner: one planned batch on one device, kernel by kernel or by CUDA graphs, and sampling.

Knows device, model and of the scheduler what a plan is made of, never the scheduler itself.
"""
