"""What a model file will take of a device, from its header and the device's rules, before it is loaded.

Knows gguf, model and what the device has free; no loaded model. Without torch, so that lists stay cheap.
"""
