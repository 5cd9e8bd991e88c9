"""What CUDA asks of a process: streams, upload, compilation, workspaces, what travels between kernels.

Knows no operation and no other room.
"""
