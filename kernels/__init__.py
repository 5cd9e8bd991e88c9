"""What runs on the device: operations on tensors, knowing no sequence and no model."""
