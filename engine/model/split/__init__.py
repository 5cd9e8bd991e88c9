"""A model of which the processor computes a part: where its layers are, its weights and its passes."""
