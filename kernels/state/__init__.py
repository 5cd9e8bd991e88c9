"""What every row of a batch carries on the device from step to step: tables, lengths, sampling, drafts.

Tensors with fixed addresses, so that captured graphs can read them. Knows cuda; no kernel that reads it.
"""
