"""What CUDA asks of a process: streams, upload, compilation of kernels, the libraries' workspaces.

Knows no operation and no other room.
"""
