"""Which tokens the next step computes and who holds blocks: queue, KV admission, chunked prefill, cost model.

Knows cache and api, no device and no torch.
"""
